"""Picks the implementation of the GRU: torch's loop in C++, or the equations where documents are packed."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.ops.choices import Choice, choose
from qkv.ops.recurrence import reference
from qkv.ops.recurrence.reference import Weights


def gru(x: Tensor, h: Tensor, weights: Weights, starts: Tensor | None = None) -> Tensor:
    """Every h (B, N, E); see ``reference`` for the shapes and the equations."""
    if starts is not None:
        choose(
            "gru", "packed documents", lambda: Choice("gru", "packed documents", "reference", "the hidden state is reset at each document")
        )
        return reference.gru(x, h, weights, starts)
    if x.shape[1] == 0:
        return reference.gru(x, h, weights)
    choose("gru", "sequence", lambda: Choice("gru", "sequence", "torch", "the loop over positions runs in C++"))
    hs, _ = torch.gru(x, h[None].contiguous(), list(weights), True, 1, 0.0, False, False, True)
    return hs
