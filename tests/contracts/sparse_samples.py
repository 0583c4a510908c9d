"""What the battery runs on of attention that leaves most pairs out."""

from __future__ import annotations

from qkv.spec.branches import Branch
from qkv.spec.sparse_attention import GlobalLocalAttention

SPARSE_TWO_WAY: tuple[Branch, ...] = (
    GlobalLocalAttention(window=2),
    GlobalLocalAttention(window=1, num_global=3, num_heads=2, head_dim=3, bias=False),
    GlobalLocalAttention(window=70, num_global=20),
)
"""Not causal: these must fail the battery."""
