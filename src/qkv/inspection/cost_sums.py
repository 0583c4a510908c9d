"""Sums of the shares of blocks. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from qkv.inspection.shares import Share

Blocks = tuple[tuple[Share, ...], ...]
"""Branches of each block."""
Named = list[list[dict[str, Share]]]
"""Branches of each block, each as shares of branch, norms and residual by name."""


def walked(layers: Named, walk: Sequence[int]) -> Named:
    """``layers`` in the order of ``walk``; repeated layers have no further parameters."""
    return [_again(layers[i]) if i in walk[:place] else layers[i] for place, i in enumerate(walk)]


def _again(block: list[dict[str, Share]]) -> list[dict[str, Share]]:
    return [{name: replace(part, parameters=0, matrices=0) for name, part in branch.items()} for branch in block]


def by_name(blocks: Named) -> dict[str, Share]:
    """Sum over all blocks, by name."""
    parts: dict[str, Share] = {}
    for name, part in (named for block in blocks for branch in block for named in branch.items()):
        parts[name] = parts.get(name, Share()) + part
    return parts


def sums(blocks: Named) -> Blocks:
    """Sum of each branch with its norms and residual."""
    return tuple(tuple(added(*branch.values()) for branch in block) for block in blocks)


def added(*shares: Share) -> Share:
    """Sum of ``shares``."""
    return reduce(Share.__add__, shares, Share())
