"""Model of two attention layers with weights set by hand: a previous-token head, an induction head, and a sink."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.branches import Attention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import NoNorm

TOKENS = POSITIONS = 16
WIDTH = 3 * TOKENS
"""Features: the token, the position, and the token before, each as a unit vector."""
_TOKEN, _POSITION, _BEFORE = (slice(i * TOKENS, (i + 1) * TOKENS) for i in range(3))


def planted() -> Transformer:
    """Layer 0: head 0 reads the token before and writes it to the last third; head 1 reads the first position and adds
    nothing. Layer 1: head 0 reads positions whose last third holds the query's token (induction) and writes their
    token; head 1 reads everything alike.
    """
    block = Block(branches=(Attention(num_heads=2, head_dim=TOKENS, bias=True),), norm=NoNorm())
    text = Text(vocab_size=TOKENS)
    m = build(
        Model(width=WIDTH, context_length=POSITIONS, frontend=text, blocks=(block,), num_layers=2, norm=NoNorm())
    ).double()
    one = torch.eye(TOKENS, dtype=torch.float64)
    with torch.no_grad():
        for parameter in m.parameters():
            parameter.zero_()
        positions: Any = m.frontend.positions
        m.frontend.table[:, _TOKEN] = one  # type: ignore[index]
        positions.table[:, _POSITION] = one
        first, second = (_Layer(branch) for branch in m.branches)
        first.maps(0, q=(_POSITION, 400 * one.roll(1, 0)), k=(_POSITION, one), v=(_TOKEN, one), output=(_BEFORE, one))
        first.q_bias[TOKENS : 2 * TOKENS] = 400 * one[0]
        first.maps(1, k=(_POSITION, one))
        second.maps(0, q=(_TOKEN, 400 * one), k=(_BEFORE, one), v=(_TOKEN, one), output=(_TOKEN, 20 * one))
    return m


class _Layer:
    """Weights of one branch by head."""

    def __init__(self, branch: Any):
        self.weight: Tensor = branch.qkv.weight
        self.output: Tensor = branch.output.weight
        self.q_bias: Tensor = branch.qkv.bias

    def maps(self, head: int, output: tuple[slice, Tensor] | None = None, **pieces: tuple[slice, Tensor]) -> None:
        """Set the maps of a head: each piece reads the features of a slice, the output writes to one."""
        for name, (features, matrix) in pieces.items():
            begin = ("q", "k", "v").index(name) * 2 * TOKENS + head * TOKENS
            self.weight[begin : begin + TOKENS, features] = matrix.T if name == "q" else matrix
        if output is not None:
            self.output[output[0], head * TOKENS : (head + 1) * TOKENS] = output[1]


def rows() -> Tensor:
    """Rows (4, 16) of eight different tokens that follow once more."""
    generator = torch.Generator().manual_seed(0)
    return torch.stack([torch.randperm(TOKENS, generator=generator)[:8].repeat(2) for _ in range(4)])
