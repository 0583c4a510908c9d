"""Promotion to at least single precision, for sums, angles and softmaxes."""

from __future__ import annotations

import torch
from torch import Tensor

_WIDE = (torch.float32, torch.float64)


def single_or_wider(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums and softmaxes of ``dtype``: float64 for float64, float32 for all other dtypes."""
    return torch.promote_types(dtype, torch.float32)


def at_least_single(x: Tensor) -> Tensor:
    """Cast ``x`` to float32; float64 is unchanged."""
    return x if x.dtype in _WIDE else x.to(single_or_wider(x.dtype))
