"""What the battery runs on of mixers that read the edges of a graph; without one, all positions are neighbours."""

from __future__ import annotations

from qkv.spec.branches import Branch
from qkv.spec.mixers.graphs import GlobalAttention, GraphAttention, Propagation, SumAggregation
from qkv.spec.parts import LayerNorm

GRAPH_TWO_WAY: tuple[Branch, ...] = (
    GraphAttention(),
    GraphAttention(num_heads=2, num_kv_heads=1, head_dim=3, value_dim=5, qk_norm=LayerNorm(eps=0.1), temperature=0.5),
    Propagation(),
    Propagation(steps=2, restart=0.25, linear=False),
    Propagation(steps=3, restart=0.1, identity=0.5, dropout=0.2),
    SumAggregation(),
    SumAggregation(hidden=5, dropout=0.2, bias=False),
    GlobalAttention(),
    GlobalAttention(num_heads=4, scaled=False, bias=False),
)
"""Not causal: these must fail the battery."""
