"""Long rows with labels: nested lists of operations on digits, and documents of sentences of one opinion.

Both follow tasks of the Long Range Arena (Tay et al. 2021), shorter and made from what is at hand. A part is a list of
(text, label); the parts of a task have no row in common, and the same arguments give the same rows.
"""

from __future__ import annotations

import csv
import gzip
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

Row = tuple[str, int]
Parts = dict[str, list[Row]]
"""Rows by part."""
PARTS = ("train", "validation", "test")

OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": lambda digits: int(statistics.median(digits)),
    "SM": lambda digits: sum(digits) % 10,
}
"""Name -> function of digits whose value is a digit; a median between two digits is rounded down."""
DEPTH, ARGUMENTS, NESTED = 10, (2, 10), 0.25
"""Levels of lists, number of arguments of a list, and probability that an argument is a list."""
SHORTEST = 100
"""Minimum number of tokens of an expression."""


class Operation(NamedTuple):
    """List of an operator and its arguments, written as ``[MAX 2 9 [MIN 4 7 ] 0 ]``."""

    operator: str
    arguments: tuple[Operation | int, ...]

    def __str__(self) -> str:
        return f"[{self.operator} {' '.join(map(str, self.arguments))} ]"

    @property
    def value(self) -> int:
        """Digit that the expression is equal to."""
        return OPERATORS[self.operator]([each if isinstance(each, int) else each.value for each in self.arguments])

    @property
    def length(self) -> int:
        """Number of tokens: digits, operators and brackets."""
        return 3 + sum(1 if isinstance(each, int) else each.length for each in self.arguments)


def operation(draw: random.Random, depth: int = 1) -> Operation:
    """Random expression of up to ``DEPTH`` levels, itself at level ``depth``, of any length."""

    def argument() -> Operation | int:
        nested = depth < DEPTH and draw.random() < NESTED
        return operation(draw, depth + 1) if nested else draw.randrange(10)

    operator = draw.choice(list(OPERATORS))
    return Operation(operator, tuple(argument() for _ in range(draw.randint(*ARGUMENTS))))


def list_operations(rows: int, held_out: int, longest: int, seed: int = 0) -> Parts:
    """ListOps (Nangia & Bowman 2018): ``rows`` training expressions with their values, ``held_out`` in the other parts.

    Expressions are drawn until they have ``SHORTEST`` to ``longest`` tokens and are new.
    """
    draw, found = random.Random(seed), dict[str, int]()
    while len(found) < rows + 2 * held_out:
        drawn = operation(draw)
        if SHORTEST <= drawn.length <= longest:
            found.setdefault(str(drawn), drawn.value)
    every = list(found.items())
    return {"test": every[:held_out], "validation": every[held_out : 2 * held_out], "train": every[2 * held_out :]}


def documents(sentences: Sequence[Row], most: int, longest: int, seed: int = 0) -> list[Row]:
    """Up to ``most`` documents of at most ``longest`` bytes, each of random sentences of one label.

    Every sentence is used once before any is used again, if the documents suffice; a document never equals another.
    """
    draw, found = random.Random(seed), dict[str, int]()
    for _ in range(1 + most):  # a bound: few sentences make few different documents
        new = [
            (text, label)
            for label in sorted({label for _, label in sentences})
            for text in _dealt([text for text, found in sentences if found == label], longest, draw)
        ]
        draw.shuffle(new)
        found.update(new)
        if len(found) >= most:
            break
    return list(found.items())[:most]


def _dealt(sentences: Sequence[str], longest: int, draw: random.Random) -> list[str]:
    """Documents in which every sentence occurs once, in random order."""
    dealt: list[str] = []
    for text in draw.sample(sentences, len(sentences)):
        joined = f"{dealt[-1]} {text}" if dealt else text
        if dealt and len(joined.encode()) <= longest:
            dealt[-1] = joined
        else:
            dealt.append(text)
    return dealt


def opinions(data: Path, rows: int, held_out: int, longest: int, seed: int = 0) -> Parts:
    """Documents of sentences of SST-2 in the folder ``data``: ``rows`` for training, ``held_out`` in the other parts.

    A part has sentences of the part of SST-2 with its name alone, without those that an earlier part has, too.
    """
    files, parts, known = {"test": "test", "validation": "dev", "train": "train"}, Parts(), set[str]()
    for part, file in files.items():
        lines = gzip.decompress((data / f"sst2/{file}.tsv.gz").read_bytes()).decode().splitlines()[1:]
        sentences = {text: int(label) for text, label in (line.split("\t") for line in lines) if text not in known}
        known |= sentences.keys()
        parts[part] = documents(list(sentences.items()), rows if part == "train" else held_out, longest, seed)
    return parts


def write_parts(parts: Parts, folder: Path) -> None:
    """Write each part to ``PART.csv``, a table of the columns text and label."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in parts.items():
        with (folder / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
