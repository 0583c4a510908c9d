"""Common parts of self-contained models: register of modules by slot and kind, positions and padding, activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Part = dict[str, Any]
"""Description of a part as plain data: its ``kind`` and its sizes."""


class Place(NamedTuple):
    """Positions and padding of a batch. positions (B or 1, N): of tokens in their texts; valid (B, N): False at
    padding, or None without padding.
    """

    positions: Tensor
    valid: Tensor | None


PARTS: dict[str, Callable[[Part, int], nn.Module]] = {}
"""Module classes of parts by ``slot.kind``, such as ``norm.rms_norm``."""


def make(slot: str, part: Part, width: int) -> Any:
    """Build the module of the part that ``part`` describes; ``slot``: its role, such as "norm" or "branch"."""
    return PARTS[f"{slot}.{part['kind']}"](part, width)


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """Dtype for sums and angles: float64 for float64, else float32."""
    return torch.promote_types(dtype, torch.float32)


def only_real(x: Tensor, place: Place) -> Tensor:
    """Vectors x (B, N, D) with 0 at padding."""
    return x if place.valid is None else x * place.valid[..., None]


def quick_gelu(x: Tensor) -> Tensor:
    """Activation x σ(1.702 x), an approximation of GELU (Hendrycks & Gimpel 2016)."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x) ** 2,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "quick_gelu": quick_gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}
