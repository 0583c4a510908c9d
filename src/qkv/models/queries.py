"""Output queries: learned vectors that are the input of the blocks, if latents read the model's input."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.context import MEMORY, Context, Memory
from qkv.layers.positions import build_positions
from qkv.spec.model import Queries as QueriesSpec


class Queries(nn.Module):
    """Output queries (B, Q, D), position embeddings: one per input position, or ``count`` per row (Perceiver IO)."""

    def __init__(self, part: QueriesSpec, width: int, context_length: int):
        super().__init__()
        self.count = part.count
        positions = build_positions(part.positions, part.count or context_length, width)
        assert positions is not None  # the spec refuses queries without positions
        self.positions = positions

    def forward(self, x: Tensor, context: Context, memory: Memory) -> tuple[Tensor, Context]:
        """Return (queries (B, Q, D), their context) for an input x (B, N, Dm).

        ``memory``: output of the latents, which the returned context passes to cross-attention as memory.
        """
        if self.count is not None:
            context = Context(torch.arange(self.count, device=x.device)[None], tap=context.tap)
        q = self.positions.vectors(context, x.dtype).to(x.dtype).expand(x.shape[0], -1, -1)
        positions, lengths = context.positions, context.lengths
        return q, Context(positions, lengths, tap=context.tap, memories={MEMORY: memory}, grid=context.grid)
