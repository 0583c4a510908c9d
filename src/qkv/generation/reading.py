"""Reading texts of any lengths in one pass, up to what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.models.transformer import State, Transformer


def read(
    model: Transformer,
    texts: Sequence[Sequence[int]],
    capacity: int | None = None,
    memory: Any | None = None,
    prompts: Sequence[int] | None = None,
) -> tuple[Tensor, State]:
    """(logits (B, V) after the last token of each text, the state there).

    ``capacity``: slots of the state a row, None grows by doubling. ``memory``: what an encoder made of B sources, for a model that looks at it.
    ``prompts``: how many first tokens of each text are its prompt, all of them by default; where the mask has a prefix, they see each other.
    """
    device = model.frontend.table.device
    ids, lengths = padded(texts, device)
    ragged = None if min(map(len, texts)) == ids.shape[1] else lengths
    more = {} if memory is None else {"memory": memory}
    prefix = None if model.spec.causal else (lengths if prompts is None else torch.tensor(prompts, device=device))
    vectors, state = model.features(ids, model.init_state(len(texts), capacity, **more), ragged, prefix=prefix)
    assert state is not None
    # Only the last vector of each row is asked what comes next.
    last = vectors[torch.arange(len(texts), device=device), lengths - 1]
    return model.head(last[:, None])[:, 0], state


def padded(texts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids (B, N), short rows filled with token 0 on the right, and lengths (B)."""
    longest = max(map(len, texts))
    ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=device)
    return ids, torch.tensor([len(text) for text in texts], device=device)
