"""Real part of the discrete Fourier transform of rows over positions and features, as in FNet.

y_ic = Re Σ_j Σ_d x_jd e^{-2πi (ij / n + cd / D)}      x, y (R, N, D), n <= N positions of each row

Re(F_n x F_D) = C_n x C_D - S_n x S_D, with the matrices of cosines C and sines S.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from qkv.ops.at_least_single import at_least_single
from qkv.ops.selection.choices import by_reference

_aten: Any = torch.ops.aten


@register_flop_formula([_aten._fft_r2c, _aten._fft_c2c, _aten._fft_c2r])  # type: ignore[misc]
def _fft_flops(shape: Sequence[int], dim: Sequence[int], *args: Any, **kwargs: Any) -> int:
    """Count the FLOPs of the FFT over the axes ``dim`` of a tensor, 5 log2 n per number for n numbers of a transform.

    That is the count of the radix-2 algorithm on complex numbers.
    """
    size = math.prod(shape[axis] for axis in dim)
    return int(5 * math.prod(shape) * math.log2(max(size, 1)))


def fourier(x: Tensor, real: Tensor | None = None) -> Tensor:
    """Transform rows x (R, N, D), which are 0 at padding.

    real (R, N): True at the first n positions of a row, which are transformed; None: all. Outputs at other positions
    are 0. Rows without padding are transformed by the FFT, in O(N D log N D).
    """
    if x.numel() == 0:
        return x
    if real is None and not by_reference():
        return torch.fft.fft2(at_least_single(x)).real.to(x.dtype)
    return reference(x, real)


def reference(x: Tensor, real: Tensor | None = None) -> Tensor:
    """Compute the same by products with matrices of cosines and sines."""
    count, width = x.shape[1:]
    lengths = torch.full((1,), count, device=x.device) if real is None else real.sum(1)
    wide = at_least_single(x)
    over_positions, over_features = (
        circle(size, sizes, wide) for size, sizes in ((count, lengths), (width, torch.full_like(lengths[:1], width)))
    )
    (c, s), (cd, sd) = over_positions, over_features
    return (c @ (wide @ cd) - s @ (wide @ sd)).to(x.dtype)


def circle(size: int, lengths: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of 2π ij / n (R, size, size) for the lengths n (R), 0 where i or j is at least n.

    The product ij is taken modulo n, so that the angles are exact for long rows. ``like``: gives the dtype.
    """
    index = torch.arange(size, device=like.device)
    n = lengths.clamp(min=1)[:, None, None]
    angles = (index[:, None] * index % n).to(like.dtype) * (2 * math.pi / n.to(like.dtype))
    inside = (index < lengths[:, None]).to(like.dtype)
    seen = inside[:, :, None] * inside[:, None, :]
    return angles.cos() * seen, angles.sin() * seen
