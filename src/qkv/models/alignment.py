"""Attention weights between target and source tokens (soft alignment)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.layers.tap import Recorder
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.spec.errors import UserError


@torch.no_grad()
def alignment(model: Transformer, source: Sequence[int], target: Sequence[int]) -> list[tuple[str, Tensor]]:
    """Return (path, weights (H, N, M)) for each branch that attends to the encoder's output, in layer order.

    source: M ids read by the encoder.   target: N ids read by the decoder; row i has the weights at the position that
        reads ``target[i]`` and predicts the next token.

    Rows sum to 1; H is 1 for additive attention. Dropout is off, in training mode too. Raises ``UserError`` without an
    encoder, or if no branch attends to its output.
    """
    device = model.device
    ids, written = (torch.as_tensor(list(row), dtype=torch.long, device=device)[None] for row in (source, target))
    tap = Recorder("weights")
    with evaluating(model):
        model.features(written, memory=model.encode(ids), tap=tap)
    seen = {name.removesuffix(".weights"): weights[0] for name, weights in tap.seen.items()}
    found = [
        (branch.name, seen[branch.name])
        for branch in model.branches
        if branch.spec.reads_memory and branch.name in seen
    ]
    if not found:
        raise UserError(
            "no branch of the model attends to the encoder's output; an alignment needs cross_attention or "
            "additive_attention"
        )
    return found
