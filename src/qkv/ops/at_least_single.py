"""Sums, angles and softmaxes in single precision where numbers are narrower, and in their own where they are not."""

from __future__ import annotations

import torch
from torch import Tensor


def single_or_wider(dtype: torch.dtype) -> torch.dtype:
    """float32 for float16, bfloat16 and integers, float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def at_least_single(x: Tensor) -> Tensor:
    """``x`` in float32 or, where it is float64, as it is."""
    return x.to(single_or_wider(x.dtype))
