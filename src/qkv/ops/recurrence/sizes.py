"""Recurrent cells on meta tensors: all positions at once, with the FLOPs and saved memory of torch's kernels.

Operators and their order are the same as in torch's loops over positions, so that autograd saves as much. The LSTM on
the CPU is one oneDNN operator, which saves a workspace for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.recurrence.reference import Memory, Weights

WORKSPACE = 20
"""Numbers per feature that oneDNN's LSTM saves for the backward pass.

Fitted to measured peaks, between fp32 (fewer) and bf16 (more).
"""


def recur(cell: str, x: Tensor, state: Memory, weights: Weights) -> tuple[Tensor, Memory]:
    """Return (h at all positions, (B, N, E), final state) as meta tensors; see ``reference`` for the arguments."""
    w, u, b, c = weights
    from_input = F.linear(x.transpose(0, 1), w, b).flatten(0, 1)
    before = from_input.sum().expand(
        len(from_input), u.shape[1]
    )  # in place of the state before each position: it has a gradient, but needs no memory
    h = _CELLS[cell](from_input, torch.addmm(c, before.to(u.dtype), u.t()), before)
    hs = h.view(x.shape[1], x.shape[0], -1)
    return hs.transpose(0, 1), tuple(hs[-1] for _ in state)


def _rnn(from_input: Tensor, from_state: Tensor, before: Tensor) -> Tensor:
    return from_state.add_(from_input).tanh_().clone()


def _gru(from_input: Tensor, from_state: Tensor, before: Tensor) -> Tensor:
    (xr, xz, xn), (hr, hz, hn) = from_input.unsafe_chunk(3, -1), from_state.unsafe_chunk(3, -1)
    r, z = hr.add_(xr).sigmoid_(), hz.add_(xz).sigmoid_()
    n = xn.add(hn.mul_(r)).tanh_()
    return (before - n).mul_(z).add_(n).clone()


def _lstm(from_input: Tensor, from_state: Tensor, before: Tensor) -> Tensor:
    workspace = from_input.new_empty(len(from_input), WORKSPACE * before.shape[1])
    return from_state.add_(from_input)[:, : before.shape[1]] * workspace[:, : before.shape[1]]


_CELLS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}
