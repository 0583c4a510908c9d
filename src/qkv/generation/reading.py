"""Prefill: encode texts of different lengths in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.models.transformer import State, Transformer


def read(
    model: Transformer,
    texts: Sequence[Sequence[int]],
    capacity: int | None = None,
    memory: Any | None = None,
    prompts: Sequence[int] | None = None,
) -> tuple[Tensor, State]:
    """Return (next-token logits (B, V), state) after the last token of each text.

    capacity: fixed number of positions of the state; None grows by doubling.   memory: encoder output of B rows.
    prompts: number of prompt tokens of each text, which attend to each other under a prefix mask; None: all tokens.
    """
    device = model.device
    ids, lengths = padded(texts, device)
    ragged = None if min(map(len, texts)) == ids.shape[1] else lengths
    prefix = lengths if prompts is None else torch.tensor(prompts, device=device)
    vectors, state = model.features(Signal(ids, ragged, prefix=prefix), model.init_state(len(texts), capacity, memory))
    assert state is not None
    # The head is applied to the last vector of each row only.
    last = vectors[torch.arange(len(texts), device=device), lengths - 1]
    return model.head(last[:, None])[:, 0], state


def padded(texts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids (B, N), right-padded with 0, and lengths (B)."""
    longest = max(map(len, texts))
    ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=device)
    return ids, torch.tensor([len(text) for text in texts], device=device)
