"""Values that a recorder has recorded, row by row: calls of one point are joined along the positions of the rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.layers.tap import CallPositions, Recorder, matches
from qkv.lens.capture.regions import Region, axes_of
from qkv.system.errors import UserError


def rows_of(recorder: Recorder, region: Region | str) -> list[Tensor]:
    """Return the region of a recorded value as one tensor for each row, without padding and without the batch axis.

    Positions read in several decoding calls are joined: the result equals that of one pass over whole rows.
    Raises ``UserError`` if nothing is recorded at the point, or if the region has an index outside of the value.
    """
    region = Region(region) if isinstance(region, str) else region
    paths = dict.fromkeys(path for path, _ in recorder if matches(region.point, path))
    if len(paths) != 1:
        what = f"several points that fit {region.point!r}: {', '.join(paths)}" if paths else f"no {region.point!r}"
        raise UserError(f"the recorder has {what}; give the path of one point that it has recorded")
    (path,) = paths
    region.check({path: recorder.descriptions[path]})
    axes = axes_of(recorder.descriptions[path])
    value, lengths = joined_calls(recorder, path, axes)
    if axes[:1] != ("B",):
        raise UserError(f"the value at {path!r} has the axes ({', '.join(axes)}), and no batch axis")
    rows = range(value.shape[0]) if region.rows is None else region.rows
    return [region.row(value[row], axes, row, None if lengths is None else lengths[row], path) for row in rows]


def joined_calls(recorder: Recorder, path: str, axes: Sequence[str]) -> tuple[Tensor, list[int] | None]:
    """Return (value at ``path`` with the positions of all calls, number of positions of each row; None if all).

    The calls are one on whole rows, or several that decode the same rows. axes: axes of the value.
    Raises ``UserError`` if there is no value, or if the calls do not continue each other.
    """
    records = [(value, recorder.places[place]) for place, value in recorder.records.items() if place.path == path]
    if len(records) == 1 and (records[0][1] is None or not _decodes(records[0][1])):
        value, span = records[0]
        lengths = None if span is None or span.lengths is None or "N" not in axes else span.lengths.tolist()
        return value, lengths
    if not records or "N" not in axes or "M" in axes:
        return recorder[path], None
    return _joined(records, path, axes.index("N"))


def _decodes(span: CallPositions) -> bool:
    return span.past is not None


def _joined(records: Sequence[tuple[Tensor, CallPositions | None]], path: str, axis: int) -> tuple[Tensor, list[int]]:
    """Join the values of decoding calls, each after the positions of those before it."""
    rows: list[list[Tensor]] = [[] for _ in range(records[0][0].shape[0])]
    ends = [0] * len(rows)
    for value, span in records:
        counts = _continued(span, ends, path)
        for row, count in enumerate(counts):
            rows[row].append(value[row].narrow(axis - 1, 0, count))
            ends[row] += count
    whole = [torch.cat(parts, axis - 1) for parts in rows]
    longest = max(ends)
    padded = [
        torch.cat((part, part.new_zeros(*_shape(part, axis - 1, longest - end))), axis - 1)
        for part, end in zip(whole, ends, strict=True)
    ]
    return torch.stack(padded), ends


def _shape(part: Tensor, axis: int, count: int) -> list[int]:
    return [count if i == axis else size for i, size in enumerate(part.shape)]


def _continued(span: CallPositions | None, ends: Sequence[int], path: str) -> list[int]:
    """Return the number of positions of each row in a call that continues rows of ``ends`` positions."""
    if span is None or span.past is None or list(span.past) != list(ends):
        raise UserError(
            f"the calls at {path!r} do not continue each other's rows; use recorder.calls({path!r}), which returns "
            "the value of each call"
        )
    return [span.count] * len(ends) if span.lengths is None else span.lengths.tolist()
