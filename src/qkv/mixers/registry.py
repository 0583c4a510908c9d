"""Register of all branches. Importing this module registers the built-in ones."""

from __future__ import annotations

from typing import Any

from qkv.layers import feed_forward, memory_layer
from qkv.layers.branch import BRANCHES, Branch
from qkv.mixers import (
    additive_attention,
    attention,
    convolution,
    cross_attention,
    disentangled_attention,
    fixed_context,
    global_local_attention,
    linear_attention,
    lsh_attention,
    recurrent,
    relative_attention,
    token_shift,
)
from qkv.spec.branches import Branch as BranchSpec

__all__ = ["BRANCHES", "build_branch"]

BUILT_IN = (
    feed_forward,
    memory_layer,
    additive_attention,
    attention,
    convolution,
    cross_attention,
    disentangled_attention,
    fixed_context,
    global_local_attention,
    linear_attention,
    lsh_attention,
    recurrent,
    relative_attention,
    token_shift,
)


def build_branch(part: BranchSpec, width: int, memory_width: int | None = None) -> Branch:
    """Build the module of a branch spec. ``memory_width``: width of memory vectors, if it differs from ``width``."""
    module: Any = BRANCHES[type(part)]
    return module(part, width) if memory_width in (None, width) or not part.reads_memory else module(part, width, memory_width)
