"""What the battery runs on of attention whose scores meet vectors of the distance."""

from __future__ import annotations

from qkv.spec.branches import Branch
from qkv.spec.masks import Causal, Full, Strided, Window
from qkv.spec.mixers.relative_attention import DisentangledAttention, GatedBiasAttention, RelativeAttention
from qkv.spec.parts import LayerNorm, RMSNorm

RELATIVE_SAMPLES: dict[str, tuple[Branch, ...]] = {
    "disentangled_attention": (
        DisentangledAttention(mask=Causal(), position_buckets=4, max_distance=7, key_bias=False),
        DisentangledAttention(mask=Causal(), num_kv_heads=2, position_buckets=None, max_distance=3),
        DisentangledAttention(mask=Causal(), max_distance=9, position_buckets=5, position_to_content=False),
        DisentangledAttention(mask=Causal() & Window(size=4, sinks=1), share_projections=False, key_bias=False),
        DisentangledAttention(mask=Causal(), num_kv_heads=1, share_projections=False, temperature=0.7),
        DisentangledAttention(mask=Causal(), head_dim=3, value_dim=5, bias=False, content_to_position=False),
    ),
    "gated_bias_attention": (
        GatedBiasAttention(mask=Causal(), num_heads=2, num_buckets=6, max_distance=5, shared=False),
        GatedBiasAttention(mask=Causal() & Window(size=4, sinks=1), num_heads=2, num_buckets=4, max_distance=9),
        GatedBiasAttention(mask=Causal(), num_heads=4, num_kv_heads=2, num_buckets=8, max_distance=7, bias=False),
    ),
    "relative_attention": (
        RelativeAttention(),
        RelativeAttention(num_kv_heads=2, max_distance=4, bias=True, qk_norm=RMSNorm(), temperature=0.6),
        RelativeAttention(mask=Causal() & Window(size=4), num_heads=1, by_type=True),
        RelativeAttention(mask=Causal() & Window(size=3, sinks=2), head_dim=3, value_dim=5, max_distance=6),
        RelativeAttention(mask=Causal() & (Window(size=2) | Strided(stride=3))),
    ),
}

RELATIVE_TWO_WAY: tuple[Branch, ...] = (
    DisentangledAttention(position_buckets=6, max_distance=9),
    DisentangledAttention(position_buckets=None, max_distance=3, table_norm=LayerNorm(eps=1e-3)),
    DisentangledAttention(mask=Window(size=3), position_buckets=3, max_distance=4, num_kv_heads=2),
    GatedBiasAttention(mask=Full(), num_heads=2, num_buckets=8, max_distance=7),
    RelativeAttention(mask=Full()),
    RelativeAttention(mask=Window(size=3), max_distance=2, num_kv_heads=2),
)
"""Not causal: these must fail the battery."""
