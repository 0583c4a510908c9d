"""Conversions between published tensors and qkv's: identity, transposition, concatenation, interleaving.

Each conversion but that of a weight norm only moves elements, so it is exactly invertible, and applies to gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from qkv.layers.layout import Layout
from qkv.system.errors import UserError


class Cut(NamedTuple):
    """Layout of the rows of one matrix of qkv.

    sizes: number of rows of each part (q, k, v). groups: number of head groups, equal for all parts. heads: number of
    heads of each part.
    """

    sizes: tuple[int, ...]
    groups: int
    heads: tuple[int, ...] = ()

    def part(self, index: int) -> Cut:
        """Return the layout of part ``index`` as a separate matrix."""
        return Cut((self.sizes[index],), self.heads[index], (self.heads[index],))


def cut_of(layout: Layout) -> Cut:
    """Return the row layout of a tensor for conversion: rows and heads of its parts, and the number of head groups.

    The number of groups is the smallest number of heads of a part.
    """
    return Cut(
        tuple(piece.size for piece in layout.out),
        min((piece.heads for piece in (*layout.out, *layout.into)), default=1),
        tuple(piece.heads for piece in layout.out),
    )


class Way:
    """Base class of conversions between ``count`` tensors of a file and one tensor of qkv."""

    count: int = 1

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        """Convert published tensors to qkv's tensor. ``cut``: row layout of qkv's tensor."""
        raise NotImplementedError

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        """Convert qkv's tensor to the published tensors, as views if possible. ``cut``: row layout of qkv's tensor.

        For a meta tensor the results have the published shapes.
        """
        raise NotImplementedError

    def accepts(self, stored: Sequence[tuple[int, ...]], written: Sequence[tuple[int, ...]]) -> bool:
        """Return True if tensors of the shapes ``stored`` can be read; ``written``: shapes of ``outward``'s tensors."""
        return stored == written


@dataclass(frozen=True)
class Plain(Way):
    """Identity: qkv's tensor is stored unchanged."""

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return theirs[0]

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (ours,)


@dataclass(frozen=True)
class Transposed(Way):
    """Transposition of a matrix stored as (in, out), as in GPT-2's ``Conv1D``; vectors are unchanged."""

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return theirs[0].t()

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (ours.t(),)


@dataclass(frozen=True)
class Joined(Way):
    """Concatenation of the rows of ``count`` published tensors: q, k and v to ``qkv``; gate and up to ``gate_up``."""

    count: int = 3

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return torch.cat(tuple(theirs))

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        if len(cut.sizes) == self.count:
            return ours.split(cut.sizes)
        return ours.tensor_split(self.count)


@dataclass(frozen=True)
class JoinedParts(Way):
    """Concatenation of the rows of published tensors after a separate conversion of each.

    Example: q, k and v, where the rotated features of q and k have another order.
    """

    ways: tuple[Way, ...]

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.ways)

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return torch.cat([way.inward([theirs[i]], cut.part(i)) for i, way in enumerate(self.ways)])

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        parts = ours.split(cut.sizes)
        return tuple(way.outward(parts[i], cut.part(i))[0] for i, way in enumerate(self.ways))


@dataclass(frozen=True)
class Alternating(Way):
    """Reordering of a tensor in which rows of two parts alternate: a gate row, then the up row of the same hidden
    feature.

    Example: gpt-oss.
    """

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return theirs[0].unflatten(0, (-1, len(cut.sizes))).transpose(0, 1).flatten(0, 1)

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (ours.unflatten(0, (len(cut.sizes), -1)).transpose(0, 1).flatten(0, 1),)


@dataclass(frozen=True)
class ExchangedHalves(Way):
    """Exchange of the two halves of the rows: the up rows come before the gate rows (GTE)."""

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return torch.cat(theirs[0].chunk(2)[::-1])

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (torch.cat(ours.chunk(2)[::-1]),)


@dataclass(frozen=True)
class Interleaved(Way):
    """Reordering of a tensor that stores for each head group the rows of its queries, key and value.

    Examples: GPT-NeoX, BLOOM, Falcon.
    """

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        grouped = theirs[0].unflatten(0, (cut.groups, sum(cut.sizes) // cut.groups))
        parts = grouped.split([size // cut.groups for size in cut.sizes], 1)
        return torch.cat([part.flatten(0, 1) for part in parts])

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        parts = [part.unflatten(0, (cut.groups, part.shape[0] // cut.groups)) for part in ours.split(cut.sizes)]
        return (torch.cat(parts, 1).flatten(0, 1),)


@dataclass(frozen=True)
class RotaryPairs(Way):
    """Reordering of the rows of each head, after which the two features of a RoPE pair, i and i + Dr/2, are adjacent.

    Example: Llama in GGUF. ``rotated``: number Dr of rotated features of a head, None: all; ``before``: number of
    features of a head before the rotated ones.
    """

    rotated: int | None = None
    before: int = 0

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return self._reordered(theirs[0], cut, lambda turned: turned.unflatten(1, (2, -1)))

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (self._reordered(ours, cut, lambda turned: turned.unflatten(1, (-1, 2))),)

    def _reordered(self, rows: Tensor, cut: Cut, cut_head: Callable[[Tensor], Tensor]) -> Tensor:
        """Reorder the rotated features of each head.

        ``cut_head`` splits their axis into two axes, which are swapped and merged again.
        """
        heads = rows.unflatten(0, (cut.groups, -1))
        if self.rotated is None:
            return cut_head(heads).transpose(1, 2).flatten(0, 2)
        end = self.before + self.rotated
        turned = cut_head(heads[:, self.before : end]).transpose(1, 2).flatten(1, 2)
        return torch.cat((heads[:, : self.before], turned, heads[:, end:]), 1).flatten(0, 1)


@dataclass(frozen=True)
class ExchangedHeadHalves(Way):
    """Exchange of the two halves of the rows of each head (NanoChat).

    The rotation of exchanged halves by -θ equals the rotation by θ.
    """

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return theirs[0].unflatten(0, (cut.groups, 2, -1)).flip(1).flatten(0, 2)

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (self.inward([ours], cut),)


@dataclass(frozen=True)
class Shards(Way):
    """Reordering of queries, keys and values that are stored in ``shards`` shards (CodeGen).

    Each shard has the rows of its queries, values and keys, in this order; the rotated features of queries and keys are
    adjacent.
    """

    shards: int
    rotated: int | None = None

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        q, v, k = theirs[0].unflatten(0, (self.shards, 3, -1)).unbind(1)
        return interleaved_rope(self.rotated).inward([part.flatten(0, 1) for part in (q, k, v)], cut)

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        q, k, v = (part.unflatten(0, (self.shards, -1)) for part in interleaved_rope(self.rotated).outward(ours, cut))
        return (torch.stack((q, v, k), 1).flatten(0, 2),)


@dataclass(frozen=True)
class Inverse(Way):
    """Inverse of the conversion ``way`` of one tensor: ``inward`` and ``outward`` are swapped."""

    way: Way

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return self.way.outward(theirs[0], cut)[0]

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (self.way.inward([ours], cut),)


@dataclass(frozen=True)
class Chained(Way):
    """Conversions of one tensor in sequence, in the order in which a published tensor is converted."""

    ways: tuple[Way, ...]

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        value = theirs[0]
        for way in self.ways:
            value = way.inward([value], cut)
        return value

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        value = ours
        for way in reversed(self.ways):
            (value,) = way.outward(value, cut)
        return (value,)


@dataclass(frozen=True)
class ByHead(Way):
    """Merging of the last two axes: published (…, H, Dk) to (…, H Dk), for XLNet's vectors and output projection."""

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return theirs[0].flatten(-2)

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (ours.unflatten(-1, (cut.groups, -1)),)


@dataclass(frozen=True)
class JoinedByHead(Way):
    """Concatenation of the rows of ``count`` tensors (in, H, Dk), XLNet's projections. Each head is a group."""

    count: int = 1

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return torch.cat([tensor.flatten(1).t() for tensor in theirs])

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return tuple(part.t().unflatten(1, (cut.groups, -1)) for part in ours.tensor_split(self.count))


@dataclass(frozen=True)
class Copied(Way):
    """One tensor with two published names: the first is read, both are written, as the other library needs both."""

    count: int = 2

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return theirs[0]

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return ours, ours.clone()


@dataclass(frozen=True)
class AdjacentFeatures(Way):
    """Reordering of the last axis, the features of a head, which in the published tensor has RoPE pairs adjacent.

    Example: norms of queries and keys in Command R+.
    """

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return theirs[0].unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (ours.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2),)


@dataclass(frozen=True)
class Broadcast(Way):
    """Removal of ``axes`` axes of size 1 from ``axis`` on, for position tables and class tokens."""

    axis: int = 0
    axes: int = 1

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        value = theirs[0]
        for _ in range(self.axes):
            value = value.squeeze(self.axis)
        return value

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        value = ours
        for _ in range(self.axes):
            value = value.unsqueeze(self.axis)
        return (value,)


@dataclass(frozen=True)
class Frames(Way):
    """Sum over ``count`` frames of a convolution, all of which see one picture: (F, C, T, P, P) to (F, C, P, P).

    An export gives each frame an equal share, so that pictures are read alike.
    """

    count: int = 2

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return theirs[0].sum(2)

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return ((ours / self.count).unsqueeze(2).repeat_interleave(self.count, 2),)


@dataclass(frozen=True)
class Taps(Way):
    """Reordering of a depthwise convolution: published (F, 1, K), earliest tap first, to (F, K), latest first."""

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return theirs[0].squeeze(1).flip(-1)

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return (ours.flip(-1).unsqueeze(1),)


@dataclass(frozen=True)
class JoinedTaps(Way):
    """Depthwise convolution that is published in parts of ``sizes`` features, for queries, keys and values.

    Each part is as in ``Taps``. Files may divide the features otherwise: transformers 5 writes parts of one size.
    """

    sizes: tuple[int, ...]

    @property
    def count(self) -> int:  # type: ignore[override]
        return len(self.sizes)

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return TAPS.inward([torch.cat(tuple(theirs))], cut)

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return TAPS.outward(ours, cut)[0].split(self.sizes)

    def accepts(self, stored: Sequence[tuple[int, ...]], written: Sequence[tuple[int, ...]]) -> bool:
        kernels = {shape[1:] for shape in (*stored, *written)}
        return len(kernels) == 1 and sum(shape[0] for shape in stored) == sum(self.sizes)


@dataclass(frozen=True)
class WeightNorm(Way):
    """Convolution (D, D / groups, K) published as lengths g (1, 1, K) and directions v: weight = g v / |v|.

    The norm is over all but the last axis (Salimans & Kingma 2016, with one length per tap, as in wav2vec 2.0). The
    weight itself is written as v, with its norm as g, so that it is read back unchanged.
    """

    count: int = 2

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        lengths, directions = theirs
        return directions * (lengths / _tap_norms(directions))

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return _tap_norms(ours), ours


def _tap_norms(weight: Tensor) -> Tensor:
    """Return the norm of each tap of a convolution (D, C, K), as a tensor (1, 1, K)."""
    return torch.linalg.vector_norm(weight, dim=(0, 1), keepdim=True)


@dataclass(frozen=True)
class WithCount(Way):
    """Running average of a batch norm, published with the number of batches that it averages.

    torch uses that number only without a momentum, so it is not read, and written as 0.
    """

    count: int = 2

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        return theirs[0]

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return ours, torch.zeros((), dtype=torch.int64, device=ours.device)


@dataclass(frozen=True)
class WithConstant(Way):
    """Tensor published with a constant ``value`` that the other library stores as a tensor (Apertus)."""

    value: float
    count: int = 2
    what: str = "a constant of the activation"
    shape: tuple[int, ...] = ()

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        stored = float(theirs[1])
        if not math.isclose(stored, self.value, rel_tol=0.01):  # bf16 rounds it
            raise UserError(f"{self.what} is {stored:g} in the file, but qkv supports only {self.value:g}")
        return theirs[0]

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return ours, torch.full(self.shape, self.value, dtype=ours.dtype, device=ours.device)


@dataclass(frozen=True)
class MeanOfSums(Way):
    """Codes e_k = s_k / max(n_k, 1e-5), published as sums s and numbers n of the vectors nearest to them (Mimi).

    Codes alone are written as sums of one vector; a table of names lists the sums and numbers themselves behind them.
    """

    count: int = 2
    LEAST: ClassVar[float] = 1e-5

    def inward(self, theirs: Sequence[Tensor], cut: Cut) -> Tensor:
        sums, numbers = theirs
        return sums / numbers.clamp(min=self.LEAST)[:, None]

    def outward(self, ours: Tensor, cut: Cut) -> tuple[Tensor, ...]:
        return ours, ours.new_ones(len(ours))


PLAIN = Plain()
TRANSPOSED = Transposed()
QKV = Joined(3)
PAIR = Joined(2)
ALTERNATING = Alternating()
SWAPPED = ExchangedHalves()
INTERLEAVED = Interleaved()
ROTARY_PAIRS = RotaryPairs()
ADJACENT_FEATURES = AdjacentFeatures()


def interleaved_rope(rotated: int | None = None) -> Way:
    """Build the conversion of queries, keys and values in three published tensors, with adjacent RoPE pairs.

    Examples: GPT-J, Cohere. ``rotated``: as in ``RotaryPairs``.
    """
    halves = Inverse(RotaryPairs(rotated))
    return JoinedParts((halves, halves, PLAIN))


EXCHANGED_QUERIES_AND_KEYS = JoinedParts((ExchangedHeadHalves(), ExchangedHeadHalves(), PLAIN))
BY_HEAD = ByHead()
ONE_BY_HEAD = JoinedByHead(1)
QKV_BY_HEAD = JoinedByHead(3)
COPIED = Copied()
TAPS = Taps()
WITH_COUNT = WithCount()
