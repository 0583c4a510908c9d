"""Labels of the positions of an input: tokens, image patches on their grid, or numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from qkv.layers.context import PositionGrid
from qkv.layers.graph import Graph
from qkv.layers.signal import Signal
from qkv.models.transformer import Stack
from qkv.runs.chats.pieces import pieces
from qkv.spec.signals.sound import Sounds
from qkv.tokenizers.tokenizer import Tokenizer

_CHANNELS = 4
"""Number of channels of a series that are drawn."""
_EDGES = 2000
_OUTLINE = 300
"""Number of parts of a sound whose highest and lowest sample are drawn."""


@dataclass(frozen=True)
class Side:
    """Positions of one input, labels: text of each position, such as a token.

    grid: sizes of the grid on which positions lie after ``leading`` others, as for image patches; empty for a sequence.
    picture: the input as a picture (data URI), "" without one. edges: pairs of positions of a graph. series: values of
    each channel of a time series, of which position n reads the steps ``spans[n]``, first and last; of a sound, its
    highest and lowest samples by turns. unit: what ``spans`` count, "s" for the labels of a sound.
    """

    labels: tuple[str, ...]
    grid: tuple[int, ...] = ()
    leading: int = 0
    picture: str = ""
    edges: tuple[tuple[int, int], ...] = ()
    series: tuple[tuple[float, ...], ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    unit: str = "steps"


def side_of(model: Stack, signal: Signal, tokenizer: Tokenizer, picture: str = "", row: int = 0) -> Side:
    """Return the labels of the positions that the front end of a model or of an encoder makes of row ``row``."""
    frontend = model.frontend
    count, grid = frontend.count(signal), frontend.grid(signal)
    lengths = frontend.lengths(signal)
    count = count if lengths is None else int(lengths[row])
    values = signal.values
    if values.dim() == 2 and not values.is_floating_point():
        return Side(_tokens(tokenizer, values[row, :count].tolist()), picture=picture)
    if grid is not None:
        return Side(_cells(grid), tuple(grid.sizes), grid.leading, picture)
    spans, read = frontend.spans(signal), frontend.part.processor
    if spans is not None and not (read is not None and read.of_sounds):
        channels = values[row, :, :_CHANNELS].T.tolist()
        labels = tuple(f"{first}–{last}" for first, last in spans[:count])
        return Side(labels, series=tuple(map(tuple, channels)), spans=tuple(spans[:count]))
    edges = _edges(frontend.graph(signal), row, values.shape[1])
    return Side(tuple(str(place) for place in range(count)), picture=picture, edges=edges)


def side_of_sound(
    model: Stack, signal: Signal, processor: Sounds, samples: np.ndarray | None = None, picture: str = "", row: int = 0
) -> Side | None:
    """Return the positions of a sound with their times; None for a front end without times, such as one of patches.

    samples: the sound, whose outline is drawn; positions beyond its end, where a window is silent, are left out.
    """
    spans, lengths = model.frontend.spans(signal), model.frontend.lengths(signal)
    if spans is None:
        return None
    times = [(first * processor.spacing, (last + 1) * processor.spacing) for first, last in spans]
    times = times if lengths is None else times[: int(lengths[row])]
    if samples is None or not len(samples):
        return Side(tuple(f"{begin:.2f} s" for begin, _ in times), unit="s")
    end = len(samples) / (processor.rate or 1)
    times = [(begin, min(last, end)) for begin, last in times if begin < end] or times[:1]
    parts = np.array_split(np.asarray(samples, np.float32), min(_OUTLINE, len(samples)))
    outline = tuple(float(value) for part in parts for value in (part.max(), part.min()))
    scale = (len(outline) - 1) / end
    inside = tuple((round(begin * scale), round(last * scale)) for begin, last in times)
    labels = tuple(f"{begin:.2f} s" for begin, _ in times)
    return Side(labels, picture=picture, series=(outline,), spans=inside, unit="s")


def _tokens(tokenizer: Tokenizer, ids: list[int]) -> tuple[str, ...]:
    if tokenizer.absent:
        return tuple(str(index) for index in ids)
    labels = list[str]()
    for placeholder, group in groupby(ids, lambda index: index < 0):  # negative ids stand for other inputs
        run = list(group)
        labels += ["[input]"] * len(run) if placeholder else pieces(tokenizer, run)
    return tuple(labels)


def _edges(graph: Graph | None, row: int, count: int) -> tuple[tuple[int, int], ...]:
    """Return the edges inside of a row of ``count`` nodes, each once; at most ``_EDGES``."""
    if graph is None:
        return ()
    pairs = (graph.edges.T - row * count).tolist()
    inside = {(min(pair), max(pair)) for pair in pairs if min(pair) >= 0 and max(pair) < count}
    return tuple(sorted(inside))[:_EDGES]


def _cells(grid: PositionGrid) -> tuple[str, ...]:
    labels = [f"[{i}]" for i in range(grid.leading)]
    places: list[tuple[int, ...]] = [()]
    for size in grid.sizes:
        places = [(*place, i) for place in places for i in range(size)]
    return (*labels, *(", ".join(map(str, place)) for place in places))
