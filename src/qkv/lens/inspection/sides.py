"""Labels of the positions of an input: tokens, image patches on their grid, or numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from qkv.layers.context import PositionGrid
from qkv.layers.signal import Signal
from qkv.models.transformer import Stack
from qkv.runs.chats.pieces import pieces
from qkv.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Side:
    """Positions of one input, labels: text of each position, such as a token.

    grid: sizes of the grid on which positions lie after ``leading`` others, as for image patches; empty for a sequence.
    picture: the input as a picture (data URI), "" without one.
    """

    labels: tuple[str, ...]
    grid: tuple[int, ...] = ()
    leading: int = 0
    picture: str = ""


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
    return Side(tuple(str(place) for place in range(count)), picture=picture)


def _tokens(tokenizer: Tokenizer, ids: list[int]) -> tuple[str, ...]:
    if tokenizer.absent:
        return tuple(str(index) for index in ids)
    labels = list[str]()
    for placeholder, group in groupby(ids, lambda index: index < 0):  # negative ids stand for other inputs
        run = list(group)
        labels += ["[input]"] * len(run) if placeholder else pieces(tokenizer, run)
    return tuple(labels)


def _cells(grid: PositionGrid) -> tuple[str, ...]:
    labels = [f"[{i}]" for i in range(grid.leading)]
    places: list[tuple[int, ...]] = [()]
    for size in grid.sizes:
        places = [(*place, i) for place in places for i in range(size)]
    return (*labels, *(", ".join(map(str, place)) for place in places))
