"""A stack of all seven mixers, and inputs for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkv.spec.branches import GRU, Attention, Branch, CausalConvolution, GatedFeedForward, TokenShift
from qkv.spec.masks import Causal, Window
from qkv.spec.mixers.linear_attention import LinearAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import NoPositions, Rope

VOCABULARY = 13

SEVEN: tuple[Branch, ...] = (
    Attention(num_heads=2, num_kv_heads=1, relative=Rope()),
    Attention(num_heads=2, mask=Causal() & Window(size=4, sinks=1)),
    LinearAttention(num_heads=2, chunk=4),
    TokenShift(),
    CausalConvolution(dilation=2),
    GRU(),
    GatedFeedForward(hidden=32),
)


def model(*blocks: Block, **fields: Any) -> Model:
    given: dict[str, Any] = {
        "width": 16,
        "context_length": 32,
        "frontend": Text(vocab_size=VOCABULARY),
        "blocks": blocks or (Block(),),
        **fields,
    }
    return Model(**given)


def seven(**fields: Any) -> Model:
    """Order from the mixers alone."""
    return model(Block(branches=SEVEN), frontend=Text(vocab_size=VOCABULARY, positions=NoPositions()), **fields)


def ids(batch: int = 2, length: int = 9, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
