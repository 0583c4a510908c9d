"""What the battery runs on of gated attention units."""

from __future__ import annotations

from qkv.spec.branches import Branch
from qkv.spec.mixers.gated_attention import GAU, MixedChunkAttention

GATED_SAMPLES: dict[str, tuple[Branch, ...]] = {
    "gau": (GAU(key_dim=6), GAU(key_dim=3, hidden=5, base=None, bias=False)),
    "mixed_chunk_attention": (
        MixedChunkAttention(key_dim=6, chunk=4),
        MixedChunkAttention(key_dim=3, hidden=5, base=None, bias=False, chunk=3),
        MixedChunkAttention(key_dim=4, hidden=7, chunk=1),
        MixedChunkAttention(key_dim=2),
    ),
}

GATED_TWO_WAY: tuple[Branch, ...] = (
    GAU(mask="full", key_dim=6),
    MixedChunkAttention(mask="full", key_dim=6, chunk=4),
    MixedChunkAttention(mask="full", key_dim=3, hidden=5, base=None, chunk=20),
)
"""Not causal: these must fail the battery."""
