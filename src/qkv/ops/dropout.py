"""Dropout at the speed of the processor's memory."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_LEVELS = 1 << 16


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """x with each number 0 with probability ``p`` and divided by 1 - p else (Srivastava et al. 2014); x itself unless ``training``.

    On the CPU torch draws one random number after the other. Here one draw of 64 bits decides four numbers, so that p is rounded to a multiple
    of 2⁻¹⁶; the generator is torch's own.
    """
    if not training or p == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    level = round(p * _LEVELS)
    # As a closed box in a compiled graph, which would draw other numbers.
    draw = _boxed_kept if torch.compiler.is_compiling() else _kept
    return x * draw(x, level).to(x.dtype).mul_(_LEVELS / (_LEVELS - level))


def _kept(x: Tensor, level: int) -> Tensor:
    """Which numbers of x stay: each not with probability level / 2¹⁶."""
    drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    return drawn[: x.numel()].view(x.shape) >= level - _LEVELS // 2


_boxed_kept = torch.library.custom_op("qkv::kept", _kept, mutates_args=())


@_boxed_kept.register_fake
def _(x: Tensor, level: int) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.bool)
