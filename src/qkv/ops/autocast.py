"""Autocast, for operators that cast by themselves."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.amp.autocast_mode import is_autocast_available


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of products of ``x``: that of autocast if it is enabled on its device, else that of ``x``."""
    kind = x.device.type
    enabled = is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if enabled else x.dtype


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context manager without autocast on the device of ``x``; meta tensors have none."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if is_autocast_available(kind) else nullcontext()
