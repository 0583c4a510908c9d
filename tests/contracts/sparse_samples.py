"""What the battery runs on of attention that leaves most pairs out."""

from __future__ import annotations

from qkv.spec.branches import Branch
from qkv.spec.masks import Causal, Full, Window
from qkv.spec.mixers.hyper_attention import HyperAttention
from qkv.spec.mixers.lsh_attention import LSHAttention
from qkv.spec.mixers.sparse_attention import GlobalLocalAttention

HASHED: tuple[Branch, ...] = (
    LSHAttention(chunk_length=3, num_buckets=(4,)),
    LSHAttention(chunk_length=2, num_buckets=(2, 4), num_hashes=3, chunks_before=2, num_heads=2, head_dim=3, bias=True),
    LSHAttention(mask=Causal() & Window(size=5, sinks=1), chunk_length=4, num_buckets=(2,), num_hashes=1),
)
"""Rows longer than a chunk: what is read at once and what is decoded are not the same."""

ESTIMATED: tuple[Branch, ...] = (
    HyperAttention(block=2, samples=2, bits=3, exact_up_to=3),
    HyperAttention(block=3, samples=4, bits=2, exact_up_to=1, num_heads=2, head_dim=3, bias=False, seed=5),
    HyperAttention(block=1, samples=1, bits=4, exact_up_to=5, num_heads=1),
)
"""Rows longer than what is exact."""

SPARSE_SAMPLES: dict[str, tuple[Branch, ...]] = {
    "lsh_attention": (
        LSHAttention(chunk_length=2000),
        LSHAttention(mask=Causal() & Window(size=3, sinks=1), num_heads=2, head_dim=3, bias=True, chunk_length=2000),
        *HASHED,
    ),
    "hyper_attention": (HyperAttention(exact_up_to=2000), *ESTIMATED),
}

SPARSE_TWO_WAY: tuple[Branch, ...] = (
    GlobalLocalAttention(window=2),
    GlobalLocalAttention(window=1, num_global=3, num_heads=2, head_dim=3, bias=False),
    GlobalLocalAttention(window=70, num_global=20),
    LSHAttention(mask=Full(), chunk_length=3, num_buckets=(4,), chunks_after=1),
    *(part.changed(mask="full") for part in ESTIMATED),
    HyperAttention(mask="full", block=4, samples=20, exact_up_to=2),
    LSHAttention(mask=Full(), chunk_length=2, num_buckets=(2, 2), num_hashes=1, num_heads=2, head_dim=3),
)
"""Not causal: these must fail the battery."""
