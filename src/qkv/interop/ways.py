"""How tensors of a published file and a tensor of qkv are one another: plain, transposed, joined, interleaved.

Each way only moves numbers, so it is exactly invertible, and a gradient goes the same way as its weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Cut(NamedTuple):
    """How the first axis of one of qkv's matrices is made up: the rows of each part, and into how many groups of heads a part falls."""

    sizes: tuple[int, ...]
    groups: int


def cut_of(owner: nn.Module) -> Cut:
    """The cut of the matrices that ``owner``, a branch or the slot around it, keeps: what it says in ``sizes`` and ``kv_heads``; without them no
    parts, one group."""
    said: Any = getattr(owner, "body", owner)
    return Cut(tuple(getattr(said, "sizes", ())), getattr(said, "kv_heads", None) or 1)


class Way:
    """Between ``count`` tensors of a file, all read at once, and one of qkv."""

    count: int = 1

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        """Ours from theirs."""
        raise NotImplementedError

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        """Theirs from ours, in their order; views where that is possible. Of a meta tensor it tells their shapes."""
        raise NotImplementedError


@dataclass(frozen=True)
class Plain(Way):
    """The same numbers in the same order."""

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return theirs[0]

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (ours,)


@dataclass(frozen=True)
class Transposed(Way):
    """A matrix stored (in, out), as GPT-2's ``Conv1D`` keeps it; a vector is left as it is."""

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return theirs[0].t()

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (ours.t(),)


@dataclass(frozen=True)
class Joined(Way):
    """Ours are the rows of their tensors, one after another: q, k and v as ``qkv``, gate and up as ``gate_up``."""

    count: int = 3

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return torch.cat(tuple(theirs))

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        if len(cut.sizes) == self.count:
            return ours.split(cut.sizes)
        return ours.tensor_split(self.count)


@dataclass(frozen=True)
class Interleaved(Way):
    """One tensor whose rows are, for each group of heads, the group's queries, its key and its value (GPT-NeoX, BLOOM, Falcon)."""

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        grouped = theirs[0].unflatten(0, (cut.groups, sum(cut.sizes) // cut.groups))
        parts = grouped.split([size // cut.groups for size in cut.sizes], 1)
        return torch.cat([part.flatten(0, 1) for part in parts])

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        parts = [part.unflatten(0, (cut.groups, part.shape[0] // cut.groups)) for part in ours.split(cut.sizes)]
        return (torch.cat(parts, 1).flatten(0, 1),)


@dataclass(frozen=True)
class ByHead(Way):
    """Theirs has an axis of heads, (…, H, Dk) where ours is (…, H Dk), as XLNet's vectors and the map that ends its attention."""

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return theirs[0].flatten(-2)

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (ours.unflatten(-1, (cut.groups, -1)),)


@dataclass(frozen=True)
class JoinedByHead(Way):
    """Ours are the rows of their tensors, one after another, each stored (in, H, Dk): XLNet's maps. As many groups of heads as heads."""

    count: int = 1

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return torch.cat([tensor.flatten(1).t() for tensor in theirs])

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return tuple(part.t().unflatten(1, (cut.groups, -1)) for part in ours.tensor_split(self.count))


@dataclass(frozen=True)
class Copied(Way):
    """Two tensors of which the second is read by nobody: ours is the first, and both are written, the other library misses it otherwise."""

    count: int = 2

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return theirs[0]

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return ours, ours.clone()


@dataclass(frozen=True)
class Broadcast(Way):
    """Theirs has an axis of size 1 at ``axis``, as the Reformer's tables of positions have for the axis that they say nothing of."""

    axis: int = 0

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return theirs[0].squeeze(self.axis)

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (ours.unsqueeze(self.axis),)


PLAIN = Plain()
TRANSPOSED = Transposed()
QKV = Joined(3)
PAIR = Joined(2)
INTERLEAVED = Interleaved()
BY_HEAD = ByHead()
ONE_BY_HEAD = JoinedByHead(1)
QKV_BY_HEAD = JoinedByHead(3)
COPIED = Copied()
