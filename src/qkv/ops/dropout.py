"""Dropout with a fast random mask on CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_LEVELS = 1 << 16


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """Set each element to 0 with probability ``p``, else divide it by 1 - p. Identity unless ``training``.

    Dropout: Srivastava et al. 2014. On CPU, torch draws one random number per element; here each 64-bit random number
    of torch's generator decides four elements, with p rounded to a multiple of 2⁻¹⁶.
    """
    if not training or p == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    level = round(p * _LEVELS)
    # A custom operator while compiling, since the compiler would draw other random numbers.
    draw = _boxed_kept if torch.compiler.is_compiling() else _draw_mask
    return x * draw(x, level).to(x.dtype).mul_(_LEVELS / (_LEVELS - level))


def _draw_mask(x: Tensor, level: int) -> Tensor:
    """Draw a dropout mask of the shape of x: False with probability level / 2¹⁶."""
    drawn = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    return drawn[: x.numel()].view(x.shape) >= level - _LEVELS // 2


_boxed_kept = torch.library.custom_op("qkv::kept", _draw_mask, mutates_args=())


@_boxed_kept.register_fake
def _(x: Tensor, level: int) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.bool)
