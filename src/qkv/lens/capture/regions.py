"""Regions of the value at a point: heads, positions, keys, features and rows, by the axes that the point declares."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.layers.tap import CallPositions, matches
from qkv.system.errors import UserError

HEADS = ("H", "G")
"""Axes of heads: H of queries, G of keys and values, of which several query heads may read one."""
_FEATURES = ("D", "Dk", "Dv", "E", "F", "V", "R", "S")
_AXES = re.compile(r"\(([A-Z][^()]*)\)")


@dataclass(frozen=True)
class Region:
    """Region of the value at a point; None selects everything along an axis. Padding of rows is never part of it.

    point: name or path of a point, as for a tap.
    heads: heads; at keys and values, the heads of keys and values.
    positions: positions in a row, counted from its beginning also while decoding, for all rows, or a list for each row;
        negative numbers count from the end of a row's positions in the call, so that -1 is its last one.
    keys: at scores and weights, positions that are attended to; at keys and values of a memory, its positions.
    features: indices of the last axis, such as neurons at ``activation``, or ids at ``head.output``.
    rows: rows of the batch.
    """

    point: str
    heads: Sequence[int] | None = None
    positions: Sequence[int] | Sequence[Sequence[int]] | None = None
    keys: Sequence[int] | None = None
    features: Sequence[int] | None = None
    rows: Sequence[int] | None = None

    @property
    def whole(self) -> bool:
        """True if the region is the value at all unpadded positions."""
        return all(getattr(self, field) is None for field in _INDEXED)

    def check(self, points: Mapping[str, str]) -> None:
        """Raise ``UserError`` if a point that the region selects lacks an axis that it indexes.

        ``points``: descriptions of points by path, see ``list_points``.
        """
        for path in filter(lambda path: matches(self.point, path), points):
            axes = axes_of(points[path])
            for field, allowed in _INDEXED.items():
                if getattr(self, field) is not None and not set(allowed) & set(axes):
                    raise UserError(
                        f"{field} cannot be selected at {path!r}, whose value has the axes ({', '.join(axes)}); "
                        f"{field} are an axis {' or '.join(allowed)}"
                    )

    def mask(self, value: Tensor, axes: Sequence[str], span: CallPositions | None, path: str) -> Tensor:
        """Return the region as a mask that broadcasts to ``value``, which has these ``axes``, in a call over ``span``.

        Raises ``UserError`` for an index outside of the value, or positions that the call cannot tell.
        """
        if self.whole and (len(axes) != value.dim() or span is None):
            return torch.ones((1,) * value.dim(), dtype=torch.bool, device=value.device)
        if len(axes) != value.dim():
            raise UserError(
                f"the value at {path!r} has the shape {list(value.shape)} in this call, not the axes "
                f"({', '.join(axes)}); take a region of it where the model returns its outputs"
            )
        if self.keys is not None and span is not None and span.past is not None:
            raise UserError(
                f"keys at {path!r} lie in the order of the decoding state; select keys in a pass over whole rows"
            )
        where = unpadded(value, axes, span)
        for field, allowed in _INDEXED.items():
            indices = getattr(self, field)
            if field != "positions" and indices is not None:
                axis = next(i for i, name in reversed(list(enumerate(axes))) if name in allowed)
                where = where & _along(axis, _chosen(indices, value.shape[axis], field, path), value)
        if self.positions is not None:
            where = where & _placed(self.positions, value, axes, span, path)
        return where

    def row(self, value: Tensor, axes: Sequence[str], row: int, length: int | None, path: str) -> Tensor:
        """Return the region of one row of a value, whose axes after the batch are ``axes[1:]``; ``length``: unpadded
        positions of the row, None: all.
        """
        axes = axes[1:]
        if length is not None:
            value = value.narrow(axes.index("N"), 0, length)
        for field, allowed in _INDEXED.items():
            indices = getattr(self, field)
            if field == "rows" or indices is None:
                continue
            if field == "positions" and any(not isinstance(place, int) for place in indices):
                indices = indices[row]
            axis = next(i for i, name in reversed(list(enumerate(axes))) if name in allowed)
            _chosen(indices, value.shape[axis], field, path)
            index = torch.tensor([i % value.shape[axis] for i in indices], device=value.device)
            value = value.index_select(axis, index)
        return value


_INDEXED: Mapping[str, Sequence[str]] = {
    "rows": ("B",),
    "heads": HEADS,
    "positions": ("N",),
    "keys": ("M",),
    "features": _FEATURES,
}


def axes_of(description: str) -> tuple[str, ...]:
    """Return the axes of a point's value, such as ("B", "N", "D"), from its description."""
    match = _AXES.search(description)
    return tuple(match[1].split(", ")) if match else ()


def unpadded(value: Tensor, axes: Sequence[str], span: CallPositions | None) -> Tensor:
    """Return a mask that broadcasts to ``value``, True at positions that are not padding."""
    if span is None or span.lengths is None or not _of_span(value, axes, span):
        return torch.ones((1,) * value.dim(), dtype=torch.bool, device=value.device)
    steps = torch.arange(span.count, device=value.device)
    return _over_rows(steps < span.lengths[:, None], value, axes)


def _of_span(value: Tensor, axes: Sequence[str], span: CallPositions) -> bool:
    """Return True if the value has the positions of the call, which blocks after a merge or in segments do not."""
    return axes[:1] == ("B",) and "N" in axes and value.shape[axes.index("N")] == span.count


def _over_rows(table: Tensor, value: Tensor, axes: Sequence[str]) -> Tensor:
    """Return a table (B or 1, N) as a mask that broadcasts to ``value``."""
    shape = [1] * value.dim()
    shape[0], shape[axes.index("N")] = table.shape
    return table.view(shape)


def _along(axis: int, chosen: Tensor, value: Tensor) -> Tensor:
    return chosen.to(value.device).view([-1 if i == axis else 1 for i in range(value.dim())])


def _chosen(indices: Sequence[int], size: int, field: str, path: str) -> Tensor:
    """Return a mask (size), True at ``indices``."""
    outside = [i for i in indices if not -size <= i < size]
    if outside:
        raise UserError(f"{path!r} has {size} {field}, numbered from 0; {outside[0]} is not one of them")
    chosen = torch.zeros(size, dtype=torch.bool)
    chosen[list(indices)] = True
    return chosen


def _placed(
    positions: Sequence[int] | Sequence[Sequence[int]],
    value: Tensor,
    axes: Sequence[str],
    span: CallPositions | None,
    path: str,
) -> Tensor:
    """Return a mask that broadcasts to ``value``, True at ``positions`` of the rows."""
    axis = axes.index("N")
    plain = span is not None and _of_span(value, axes, span)
    if span is not None and not plain and (span.past is not None or span.lengths is not None):
        raise UserError(
            f"the value at {path!r} has {value.shape[axis]} positions, the rows {span.count}; positions can be "
            "selected there in a pass over whole rows without padding"
        )
    batch, count, device = value.shape[0], value.shape[axis], value.device
    past = [0] * batch if span is None or span.past is None else list(span.past)
    lengths = [count] * batch if span is None or span.lengths is None else [int(n) for n in span.lengths]
    each = _of_rows(positions, batch)
    table = torch.zeros(batch, count, dtype=torch.bool)
    for row, (places, before, length) in enumerate(zip(each, past, lengths, strict=True)):
        for place in places:
            column = place + length if place < 0 else place - before
            if 0 <= column < length:
                table[row, column] = True
            elif (span is None or span.past is None) and not 0 <= column < count:
                raise UserError(f"row {row} has {length} positions at {path!r}; {place} is not one of them")
    return _over_rows(table.to(device), value, axes)


def _of_rows(positions: Sequence[int] | Sequence[Sequence[int]], batch: int) -> list[list[int]]:
    listed = [place if isinstance(place, int) else list(place) for place in positions]
    if all(isinstance(place, int) for place in listed):
        return [listed] * batch  # type: ignore[list-item]
    if len(listed) != batch or any(isinstance(place, int) for place in listed):
        raise UserError(
            f"positions are given for {len(listed)} rows, and the call has {batch}; give one list for each row, or "
            "one list of numbers for all"
        )
    return listed  # type: ignore[return-value]
