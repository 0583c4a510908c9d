"""Input checks of a model, so that wrong shapes or values give a clear message instead of a kernel error or wrong
results.

Shapes, precisions and devices are always checked; values only if cheap: on the CPU, and not while tracing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.layers.graph import Graph
from qkv.layers.signal import Signal
from qkv.system.errors import UserError

_FEW = 256
"""Number of values up to which Python is faster than a reduction."""


def check_signal(signal: Signal, count: int, axes: int) -> None:
    """Raise ``UserError`` unless all fields of a signal have the same rows and positions.

    ``count``: number of positions per row.   ``axes``: number of position axes.
    """
    rows, device = signal.num_rows, signal.values.device
    for name, counts, most in (
        ("lengths", signal.lengths, signal.values.shape[1]),
        ("prefix lengths", signal.prefix, count),
    ):
        if counts is not None:
            check_counts(name, counts, rows, most, device)
    if signal.segments is None and signal.positions is None and signal.visible is None:
        return
    each, places = ((rows, count), (1, count)), (axes,) * (axes > 1)
    tables = (
        ("segments", signal.segments, each[:1]),
        ("positions", signal.positions, tuple((*shape, *places) for shape in each)),
        ("visible", signal.visible, ((rows, count, count),)),
    )
    for name, table, shapes in tables:
        if table is not None:
            check_table(name, table, shapes, device)


def check_graph(graph: Graph, rows: int, count: int, device: torch.device) -> None:
    """Raise ``UserError`` unless the edges are integers (2, E) from 0 to ``rows`` · ``count`` - 1, the node indices."""
    edges, shape = graph.edges, (rows, count, count)
    if edges.dim() != 2 or edges.shape[0] != 2:
        raise UserError(f"edges have the shape {_shape(edges)}; give source and target of each, (2, edges)")
    _check_integers("edges", edges, "index nodes", device)
    bounds = _bounds(edges)
    if bounds is not None and not 0 <= bounds[0] <= bounds[1] < rows * count:
        wrong = bounds[0] if bounds[0] < 0 else bounds[1]
        raise UserError(f"an edge has the node {wrong}; node indices over all rows are 0 to {rows * count - 1}")
    if graph.distances is not None:
        check_table("distances", graph.distances, (shape,), device)


def check_ids(ids: Tensor, device: torch.device) -> None:
    """Raise ``UserError`` unless ids are integers (B, N) on the device of the weights."""
    if ids.dim() != 2:
        raise UserError(
            f"ids have the shape {_shape(ids)}; give B rows of N ids, (B, N), such as ids[None] for a single row"
        )
    _check_integers("ids", ids, "index tokens", device)


def check_features(buckets: Tensor, device: torch.device) -> None:
    """Raise ``UserError`` unless feature buckets are integers (B, N, F) on the device of the weights."""
    if buckets.dim() != 3 or not buckets.shape[2]:
        raise UserError(
            f"features have the shape {_shape(buckets)}; give B rows of N words with F features each, (B, N, F)"
        )
    _check_integers("features", buckets, "index buckets", device)


def check_marks(marks: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    """Raise ``UserError`` unless marks are integers of the shape (B, N, K) on the device of the weights."""
    if tuple(marks.shape) != shape:
        raise UserError(f"marks have the shape {_shape(marks)}; give {shape[-1]} for each token, {shape}")
    _check_integers("marks", marks, "select vectors", device)


def check_mark(values: Tensor, size: int, name: str) -> None:
    """Raise ``UserError`` if a value of a mark, also at a padded position, is not in 0 to ``size`` - 1.

    Values on a GPU or in a traced call are not checked.   ``name``: for the message, such as "mark 2".
    """
    bounds = _bounds(values)
    if bounds is not None and not 0 <= bounds[0] <= bounds[1] < size:
        wrong = bounds[1] if bounds[1] >= size else bounds[0]
        raise UserError(f"{name} of a token is {wrong}; allowed: 0 to {size - 1}, also at padded positions")


def _check_integers(name: str, values: Tensor, do: str, device: torch.device) -> None:
    if values.dtype not in (torch.long, torch.int):
        raise UserError(f"{name} are {_named(values.dtype)}, and they {do}; give int64 or int32")
    _same_device(name, values, device)


def check_vocabulary(ids: Tensor, size: int, lowest: int = 0) -> None:
    """Raise ``UserError`` if an id, also at a padded position, is not in ``lowest`` to ``size`` - 1.

    Ids on a GPU or in a traced call are not checked.
    """
    bounds = _bounds(ids)
    if bounds is not None and not lowest <= bounds[0] <= bounds[1] < size:
        wrong = bounds[1] if bounds[1] >= size else bounds[0]
        raise UserError(
            f"the id {wrong} is outside of the vocabulary; ids are {lowest} to {size - 1}, also at padded positions"
        )


def check_counts(name: str, counts: Tensor, rows: int, most: int | None, device: torch.device) -> None:
    """Raise ``UserError`` unless ``counts`` are integers (``rows``,) from 0 to ``most``.

    The range is not checked on a GPU or in a traced call.   ``name``: name of the argument in the message.
    ``most``: None for no upper bound.
    """
    if counts.shape != (rows,):
        raise UserError(f"{name} have the shape {_shape(counts)}; give one for each of the {rows} rows, ({rows},)")
    if counts.dtype not in (torch.long, torch.int):
        raise UserError(f"{name} are {_named(counts.dtype)}, and they count positions; give int64 or int32")
    _same_device(name, counts, device)
    bounds = _bounds(counts)
    if bounds is not None and (bounds[0] < 0 or (most is not None and bounds[1] > most)):
        wrong = bounds[0] if bounds[0] < 0 else bounds[1]
        limit = "at least 0" if most is None else f"0 to {most}, the number of positions of a row"
        raise UserError(f"{name} hold {wrong}; allowed: {limit}")


def check_table(name: str, table: Tensor, shapes: tuple[tuple[int, ...], ...], device: torch.device) -> None:
    """Raise ``UserError`` if the shape of ``table`` is not among ``shapes``, or if it is on another device."""
    if tuple(table.shape) not in shapes:
        raise UserError(f"{name} have the shape {_shape(table)}; give {' or '.join(map(str, shapes))}")
    _same_device(name, table, device)


def check_rows(name: str, rows: int, beside: str, batch: int) -> None:
    """Raise ``UserError`` if the argument ``name`` has ``rows`` rows, but the argument ``beside`` has ``batch``."""
    if rows != batch:
        raise UserError(
            f"{name} and {beside} have different numbers of rows: {rows} and {batch}; give one row per text in both"
        )


def _bounds(values: Tensor) -> tuple[int, int] | None:
    """Return (smallest, largest) value; None if ``values`` is empty, on a GPU or traced, where reading is not cheap."""
    if values.device.type != "cpu" or not values.numel() or torch.compiler.is_compiling() or type(values) is not Tensor:
        return None
    if values.numel() <= _FEW:
        numbers = values.flatten().tolist()
        return min(numbers), max(numbers)
    low, high = values.aminmax()
    return int(low), int(high)


def _same_device(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise UserError(f"{name} are on {tensor.device} and the model on {device}; move one of them")


def _shape(t: Tensor) -> str:
    return str(tuple(t.shape))


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
