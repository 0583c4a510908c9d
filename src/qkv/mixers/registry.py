"""Building of branches."""

from __future__ import annotations

from qkv.layers.branch import Branch
from qkv.spec.branches import Branch as BranchSpec
from qkv.spec.register import implementation, implementations

_PACKAGES = ("qkv.layers", "qkv.mixers")


def build_branch(part: BranchSpec, width: int, memory_width: int | None = None) -> Branch:
    """Build the module of a branch spec. ``memory_width``: width of memory vectors, if it differs from ``width``."""
    module = implementation(part, *_PACKAGES)
    return (
        module(part, width)
        if memory_width in (None, width) or not part.reads_memory
        else module(part, width, memory_width)
    )


def branches() -> dict[type[BranchSpec], type[Branch]]:
    """Return the module class of every branch that a block can list, by spec class."""
    return implementations(BranchSpec, *_PACKAGES)
