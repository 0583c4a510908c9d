"""Tiny models and inputs of the tests of captures."""

from __future__ import annotations

from typing import Any

import torch

import qkv
from qkv.layers.signal import Signal
from qkv.models.transformer import Transformer
from qkv.spec.model import Model

IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8], [7, 7, 1, 2, 0, 0]])
LENGTHS = torch.tensor([6, 6, 4])
RAGGED = Signal(IDS, LENGTHS)
OTHER = Signal(IDS.flip(0).roll(1, 1), LENGTHS)


def built(**more: Any) -> Transformer:
    """Build a language model of two blocks, in float64."""
    torch.manual_seed(1)
    fields = {
        "width": 16,
        "num_layers": 2,
        "context_length": 16,
        "frontend": {"kind": "text", "vocab_size": 11},
        "blocks": [{"branches": ["attention(4, num_kv_heads=2, relative=rope)", "feed_forward(24)"]}],
        "init_std": 0.5,
        **more,
    }
    return qkv.build(Model.parse(fields)).double().eval()
