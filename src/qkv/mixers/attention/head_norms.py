"""Norms of queries and keys (B, H, N, Dk): over each head, or over all heads at once."""

from __future__ import annotations

from torch import Tensor, nn

from qkv.layers.context import Context
from qkv.layers.layout import Declared, Layouts, vector
from qkv.layers.norms import Norm, build_norm
from qkv.spec import parts
from qkv.spec.branches import Attention


class EachHeadNorm(Norm, Declared):
    """Norm over the features of a head, with separate weights for each head, (H, Dk) (Command R+, Cohere 2024)."""

    def __init__(self, part: parts.Norm, heads: int, head_dim: int):
        super().__init__()
        self.num_heads = heads
        self.norm = build_norm(part.unweighted, head_dim)
        alone = build_norm(part, head_dim)
        self.weight, self.bias = (self._of_heads(getattr(alone, name, None), heads) for name in ("weight", "bias"))
        self.centre = 1.0 if getattr(part, "zero_centred", False) else 0.0

    @staticmethod
    def _of_heads(vector: Tensor | None, heads: int) -> nn.Parameter | None:
        return None if vector is None else nn.Parameter(vector.detach().repeat(heads, 1))

    def layouts(self) -> Layouts:
        return {name: vector("heads", self.num_heads, 1) for name in ("weight", "bias")}

    def forward(self, x: Tensor, context: Context) -> Tensor:
        out = self.norm(x, context)
        if self.weight is not None:
            out = out * (self.centre + self.weight).to(out.dtype)[:, None]
        return out if self.bias is None else out + self.bias.to(out.dtype)[:, None]


class AllHeadsNorm(Norm):
    """Norm over the H Dk features of all heads of a position (OLMo 2, 2025; MiniMax-M2, 2025)."""

    def __init__(self, part: parts.Norm, heads: int, head_dim: int):
        super().__init__()
        self.norm = build_norm(part, heads * head_dim)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        heads = x.shape[1:2] + x.shape[3:]
        return self.norm(x.transpose(1, 2).flatten(2), context).unflatten(-1, heads).transpose(1, 2)


def build_head_norm(part: Attention, heads: int, head_dim: int) -> Norm:
    """Build the norm of ``heads`` heads of queries or keys, each of ``head_dim`` features."""
    match part.qk_norm_over:
        case "head":
            return build_norm(part.qk_norm, head_dim)
        case "each_head":
            return EachHeadNorm(part.qk_norm, heads, head_dim)
        case "all_heads":
            return AllHeadsNorm(part.qk_norm, heads, head_dim)
