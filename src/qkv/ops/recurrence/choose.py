"""Picks the implementation of a recurrent cell: torch's loop in C++, or the equations where documents are packed."""

from __future__ import annotations

from torch import Tensor

from qkv.ops.choices import Choice, choose
from qkv.ops.recurrence import reference, torch_loop
from qkv.ops.recurrence.reference import Memory, Weights


def recur(
    cell: str, x: Tensor, state: Memory, weights: Weights, starts: Tensor | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, Memory]:
    """(every h (B, N, E), the state after each row's last real position); see ``reference`` for the shapes and the equations."""
    if x.shape[1] == 0 or x.shape[0] == 0:
        return reference.recur(cell, x, state, weights)
    if starts is not None:
        reason = "the hidden state is reset at each document"
        choose(cell, "packed documents", lambda: Choice(cell, "packed documents", "reference", reason))
        return reference.recur(cell, x, state, weights, starts, lengths)
    choose(cell, "sequence", lambda: Choice(cell, "sequence", "torch", "the loop over positions runs in C++"))
    return torch_loop.recur(cell, x, state, weights, lengths)
