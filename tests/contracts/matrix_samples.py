"""What the battery runs on of mixers whose state is a matrix per head."""

from __future__ import annotations

from qkv.spec.branches import Branch
from qkv.spec.mixers.linear_attention import Favor, LinearAttention
from qkv.spec.mixers.mamba import RGLRU, Mamba
from qkv.spec.mixers.matrix_state import GatedDelta, Mamba2, Retention
from qkv.spec.parts import RMSNorm

MATRIX_SAMPLES: dict[str, tuple[Branch, ...]] = {
    "linear_attention": (
        LinearAttention(),
        LinearAttention(num_heads=1, chunk=1, bias=False),
        LinearAttention(num_heads=2, chunk=3),
        LinearAttention(num_heads=2, features=Favor(num_features=11, seed=3), chunk=4),
        LinearAttention(features=Favor(num_features=2, orthogonal=False)),
    ),
    "retention": (
        Retention(),
        Retention(num_heads=2, head_dim=2, value_dim=3, base=None, chunk=3, bias=True),
        Retention(num_heads=8, chunk=1),
    ),
    "mamba2": (
        Mamba2(state_size=4),
        Mamba2(num_heads=6, expansion=1.5, state_size=3, num_groups=3, kernel_size=1, chunk=4),
        Mamba2(num_heads=2, state_size=5, num_groups=2, kernel_size=2, chunk=1),
        Mamba2(state_size=3, num_groups=2, norm_groups=2, min_step=0.1, convolution_bias=False, bias=True, eps=0.1),
        Mamba2(state_size=3, norm="before_gate", norm_groups=2, factors=(0.5, 2.0, 1.5, 0.7, 3.0)),
        Mamba2(state_size=2, norm="none", num_heads=2),
    ),
    "mamba": (
        Mamba(state_size=3),
        Mamba(expansion=1.5, state_size=2, step_rank=3, kernel_size=1, convolution_bias=False, norm=RMSNorm(eps=0.1)),
        Mamba(expansion=0.5, state_size=1, kernel_size=3, bias=True, norm=RMSNorm(weight=False)),
    ),
    "rg_lru": (
        RGLRU(),
        RGLRU(num_heads=2, hidden=6, kernel_size=1, activation="silu"),
        RGLRU(num_heads=1, hidden=3, kernel_size=3),
    ),
    "gated_delta": (
        GatedDelta(),
        GatedDelta(num_heads=2, head_dim=3, value_dim=5, kernel_size=1, chunk=4),
        GatedDelta(decay=False, chunk=3, kernel_size=3),
        GatedDelta(num_key_heads=2, head_dim=3, max_strength=2.0, convolution_bias=False, eps=0.1),
    ),
}

MATRIX_TWO_WAY: tuple[Branch, ...] = (
    LinearAttention(mask="full"),
    LinearAttention(mask="full", num_heads=2, features=Favor(num_features=5)),
)
"""Not causal: these must fail the battery."""
