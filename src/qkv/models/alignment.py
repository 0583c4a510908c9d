"""Attention weights between target and source tokens (soft alignment)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.layers.branch import Branch
from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.system.errors import UserError


@torch.no_grad()
def alignment(model: Transformer, source: Sequence[int] | Signal, target: Sequence[int]) -> list[tuple[str, Tensor]]:
    """Return (path, weights (H, N, M)) for each branch that attends to the encoder's output, in layer order.

    source: M ids, or a signal of one row, read by the encoder.   target: N ids read by the decoder; row i has the
        weights at the position that reads ``target[i]`` and predicts the next token.

    Rows sum to 1; H is 1 for additive attention. Dropout is off, in training mode too. Raises ``UserError`` without an
    encoder, or if no branch attends to its output.
    """
    device = model.device
    written = torch.as_tensor(list(target), dtype=torch.long, device=device)[None]
    signal = source if isinstance(source, Signal) else Signal(torch.as_tensor(list(source), dtype=torch.long)[None])
    tap = Recorder(*(branch.path_of("weights") for branch in model.branches if _attends_to_memory(branch)))
    with evaluating(model):
        model.features(written, memory=model.encode(signal.to(device)), tap=tap)
    if not tap.records:
        raise UserError(
            "no branch of the model attends to the encoder's output; an alignment needs cross_attention or "
            "additive_attention"
        )
    return [(location.module, weights[0]) for location, weights in tap.records.items()]


def _attends_to_memory(branch: Branch) -> bool:
    return branch.spec.reads_memory and "weights" in branch.points()
