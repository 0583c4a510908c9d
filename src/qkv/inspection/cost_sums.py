"""The shares of blocks put together. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from qkv.inspection.shares import Share

Blocks = tuple[tuple[Share, ...], ...]
"""Of each block its branches."""
Named = list[list[dict[str, Share]]]
"""Of each block its branches, each with the norms and the residual around it, by name."""


def walked(layers: Named, walk: Sequence[int]) -> Named:
    """``layers`` in the order of ``walk``; one that comes again has no further parameters."""
    return [_again(layers[i]) if i in walk[:place] else layers[i] for place, i in enumerate(walk)]


def _again(block: list[dict[str, Share]]) -> list[dict[str, Share]]:
    return [{name: replace(part, parameters=0, matrices=0) for name, part in branch.items()} for branch in block]


def by_name(blocks: Named) -> dict[str, Share]:
    """What is named alike, in all blocks together."""
    parts: dict[str, Share] = {}
    for name, part in (named for block in blocks for branch in block for named in branch.items()):
        parts[name] = parts.get(name, Share()) + part
    return parts


def sums(blocks: Named) -> Blocks:
    """Each branch with what stands around it."""
    return tuple(tuple(added(*branch.values()) for branch in block) for block in blocks)


def added(*shares: Share) -> Share:
    """All of them together."""
    return reduce(Share.__add__, shares, Share())
