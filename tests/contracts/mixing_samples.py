"""What the battery runs on of mixers by place: matrices over positions, shifts, means of neighbours."""

from __future__ import annotations

from qkv.spec.branches import Branch
from qkv.spec.mixers.grids.convolved import ConvolvedFeedForward
from qkv.spec.mixers.grids.focal import FocalModulation
from qkv.spec.mixers.grids.reduced import ReducedAttention
from qkv.spec.mixers.grids.windows import MappedBias, NoWindowBias, WindowAttention
from qkv.spec.mixers.linformer import Linformer
from qkv.spec.mixers.neighbours import MONet, Pooling, SpatialShift
from qkv.spec.mixers.position_matrices import GMLP, Fourier, RandomMixing, TokenMLP
from qkv.spec.parts import LayerNorm, NoNorm, RMSNorm

MIXING_SAMPLES: dict[str, tuple[Branch, ...]] = {
    "gmlp": (
        GMLP(mask="causal", length=1110),
        GMLP(mask="causal", length=1100, hidden=6, activation="silu", norm=NoNorm()),
        GMLP(mask="causal", length=1120, hidden=2, norm=RMSNorm()),
    ),
    "random_mixing": (RandomMixing(mask="causal", length=1110),),
    "spatial_shift": (SpatialShift(mask="causal"), SpatialShift(mask="causal", hidden=5, activation="relu2")),
    "monet": (
        MONet(mask="causal"),
        MONet(mask="causal", hidden=7, rank=3, norm=NoNorm()),
        MONet(shift=False),
        MONet(shift=False, hidden=9, rank=2, norm=RMSNorm()),
    ),
}

MIXING_TWO_WAY: tuple[Branch, ...] = (
    Fourier(),
    Linformer(length=13, rank=5),
    Linformer(length=11, rank=3, num_heads=2, head_dim=3, share="none", bias=False),
    Linformer(length=12, rank=4, num_heads=1, share="keys_values"),
    TokenMLP(length=13),
    TokenMLP(length=11, hidden=5, activation="relu2"),
    GMLP(length=13),
    GMLP(length=11, hidden=6, activation="silu", norm=NoNorm()),
    GMLP(length=12, hidden=10, norm=RMSNorm()),
    RandomMixing(length=13),
    RandomMixing(length=11),
    SpatialShift(),
    SpatialShift(hidden=5, activation="relu2"),
    Pooling(),
    Pooling(size=4),
    MONet(),
    MONet(hidden=7, rank=3, norm=NoNorm()),
    ConvolvedFeedForward(hidden=5),
    ConvolvedFeedForward(hidden=6, size=5, place="input", norm=RMSNorm(), activation="silu"),
    ConvolvedFeedForward(hidden=5, place="input", response_norm=True),
    FocalModulation(),
    FocalModulation(levels=1, window=5, mean=True, norm=LayerNorm()),
    ReducedAttention(num_heads=2),
    ReducedAttention(num_heads=1, ratio=3, bias=False, head_dim=5, norm=NoNorm()),
    WindowAttention(num_heads=2, window=4),
    WindowAttention(num_heads=2, window=3, shift=1, bias=False, head_dim=3),
    WindowAttention(num_heads=1, window=4, shift=2, relative=NoWindowBias()),
    WindowAttention(num_heads=2, window=3, shift=2, key_bias=False, scores="cosine", relative=MappedBias(hidden=5)),
)
"""Not causal: these must fail the battery."""
