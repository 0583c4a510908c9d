"""Activation functions by name; ``quick_gelu`` is x σ(1.702 x) (Hendrycks & Gimpel 2016)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.activation import Activation

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "gelu": Activation("gelu", F.gelu),
    "gelu_tanh": Activation("gelu_tanh", partial(F.gelu, approximate="tanh")),
    "silu": Activation("silu", F.silu),
    "quick_gelu": Activation("quick_gelu", lambda x: F.silu(1.702 * x) / 1.702),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}
