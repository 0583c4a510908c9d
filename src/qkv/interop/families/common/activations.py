"""Names of activations in published configs, and the corresponding activations of qkv."""

from __future__ import annotations

INWARD = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "linear": "identity",
    "xielu": "xielu",
}

OUTWARD = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "identity": "linear",
    "xielu": "xielu",
}
