"""Assembler of SUBLEQ programs: labels, named operations, and inputs, to the first row of tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from qkv.system.errors import UserError, nearest, quoted
from qkv.theory.subleq.interpreter import signed

FOLDER = Path(__file__).with_name("programs")
SUFFIX = ".subleq"

OPERATIONS = {
    "subtract": (("a", "b"), ("a b next",)),
    "add": (("a", "b"), ("a zero next", "zero b next", "zero zero next")),
    "clear": (("a",), ("a a next",)),
    "move": (("a", "b"), ("b b next", "a zero next", "zero b next", "zero zero next")),
    "jump": (("c",), ("zero zero c",)),
    "halt": ((), ("zero zero here",)),
}
"""Operation -> its operands, and the instructions that it stands for; ``zero`` is a cell that holds 0 between them."""

_LINE = re.compile(r"\s*(?:([A-Za-z_]\w*)\s*:)?\s*(.*)")
_TERM = re.compile(r"(#?[A-Za-z_]\w*|-?\d+)([+-]\d+)?")
_PLACES = ("here", "next")


class SourceLine(NamedTuple):
    """Line of a program: its number, its label, "" for none, and its words."""

    number: int
    label: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """Program in memory. row: tokens of cells and counter.   labels: cell by label.   outputs: cells by label."""

    row: tuple[int, ...]
    labels: Mapping[str, int]
    outputs: Mapping[str, range]

    @property
    def size(self) -> int:
        """Number of cells of the memory."""
        return len(self.row) - 1

    def results(self, row: Sequence[int]) -> dict[str, list[int]]:
        """Return the numbers in the output cells of a row, by label."""
        return {name: [signed(row[cell], self.size) for cell in cells] for name, cells in self.outputs.items()}

    def name(self, cell: int) -> str:
        """Return a cell's label, or the label before it with the distance, such as "list+2"."""
        below = max(((place, label) for label, place in self.labels.items() if place <= cell), default=None)
        if below is None:
            return str(cell)
        return below[1] if below[0] == cell else f"{below[1]}+{cell - below[0]}"


def program_source(name: str) -> str:
    """Return the text of a program: a file, or one of those that ship with the package, such as "sort"."""
    shipped = {path.stem: path for path in FOLDER.glob(f"*{SUFFIX}")}
    path = Path(name).expanduser()
    if not path.is_file() and name not in shipped:
        raise UserError(f"there is no program or file {quoted(name)}; {nearest(name, shipped)}; or name a file")
    try:
        return (path if path.is_file() else shipped[name]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the program {quoted(name)} cannot be read: {error}") from None


def assemble(source: str, bits: int = 8, inputs: Mapping[str, Sequence[int]] | None = None) -> Program:
    """Translate a program to its first row: 2^bits cells and the counter, which begins at cell 0.

    A line is ``label: operation operands ; comment``, each part optional. Operations: ``subleq a b c``, c the next
    instruction by default; ``data`` with numbers or addresses; ``output`` with labels; and those of ``OPERATIONS``.
    Operands: labels, ``label+1``, addresses, ``here`` and ``next`` (this and the next instruction), ``#label`` (count
    of the numbers at a label). inputs: numbers that replace those of a label, as many as are given. Raises
    ``UserError`` for a line that is not understood, and for a program that does not fit into memory.
    """
    lines, values = list(_lines(source)), dict(inputs or {})
    defined = {line.label for line in lines if line.label and line.words[:1] == ("data",)}
    unknown = next((name for name in values if name not in defined), None)
    if unknown is not None:
        raise UserError(f"the program has no data with the label {quoted(unknown)}; {nearest(unknown, defined)}")
    lines = [_with_input(line, values) for line in lines]
    if "zero" not in {line.label for line in lines}:
        lines.append(SourceLine(len(lines), "zero", ("data", "0")))
    labels, cells = _placed(lines, 1 << bits)
    counts = {f"#{line.label}": len(line.words) - 1 for line in lines if line.words[:1] == ("data",)}
    tokens = [_value(term, {**labels, **counts, **places}, line, bits) for term, places, line in cells]
    names = [(name, line) for line in lines if line.words[:1] == ("output",) for name in line.words[1:]]
    for name, line in names:
        if name not in labels:
            raise UserError(f"line {line.number}: there is no label {quoted(name)}; {nearest(name, labels)}")
    outputs = {name: range(labels[name], labels[name] + counts.get(f"#{name}", 1)) for name, _ in names}
    return Program((*tokens, *(0,) * ((1 << bits) - len(tokens)), 0), labels, outputs)


def _lines(source: str) -> Iterator[SourceLine]:
    for number, text in enumerate(source.splitlines(), 1):
        match = _LINE.fullmatch(text.partition(";")[0].replace(",", " ").rstrip())
        assert match is not None
        words = tuple(match[2].split())
        if match[1] or words:
            yield SourceLine(number, match[1] or "", words)


def _with_input(line: SourceLine, inputs: Mapping[str, Sequence[int]]) -> SourceLine:
    if line.label not in inputs:
        return line
    return line._replace(words=("data", *map(str, inputs[line.label])))


_Cell = tuple[str, dict[str, int], SourceLine]
"""Cell of a program: its expression, the addresses ``here`` and ``next``, and its line."""


def _placed(lines: Sequence[SourceLine], size: int) -> tuple[dict[str, int], list[_Cell]]:
    """Return (address of each label, cells)."""
    labels, cells = dict[str, int](), list[_Cell]()
    for line in lines:
        if line.label in labels or line.label in _PLACES:
            problem = "is reserved" if line.label in _PLACES else "is there already"
            raise UserError(f"line {line.number}: the label {quoted(line.label)} {problem}; give another name")
        if line.label:
            labels[line.label] = len(cells)
        for terms in _instructions(line):
            here = len(cells)
            places = {"here": here, "next": here + len(terms)}
            cells += [(term, places, line) for term in terms]
    if len(cells) > size:
        raise UserError(f"the program has {len(cells):,} cells, but the memory has {size:,}; give more bits")
    return labels, cells


def _instructions(line: SourceLine) -> Iterator[Sequence[str]]:
    """Yield the expressions of each instruction, or of all data of the line."""
    operation, terms = (line.words or ("output",))[0], line.words[1:]
    if operation == "output":
        return
    if operation == "data":
        yield terms
    elif operation == "subleq":
        _check_count(line, len(terms), (2, 3))
        yield (*terms, "next")[:3]
    elif operation in OPERATIONS:
        names, instructions = OPERATIONS[operation]
        _check_count(line, len(terms), (len(names),))
        operands = {"zero": "zero", "here": "here", "next": "next", **dict(zip(names, terms, strict=True))}
        for instruction in instructions:
            yield [operands[word] for word in instruction.split()]
    else:
        allowed = ("subleq", "data", "output", *OPERATIONS)
        raise UserError(f"line {line.number}: no operation {quoted(operation)}; {nearest(operation, allowed)}")


def _check_count(line: SourceLine, count: int, allowed: Sequence[int]) -> None:
    if count not in allowed:
        counts = " or ".join(map(str, allowed))
        raise UserError(f"line {line.number}: {line.words[0]} has {counts} operands, but {count} are given")


def _value(term: str, names: Mapping[str, int], line: SourceLine, bits: int) -> int:
    """Return the token of an expression."""
    match = _TERM.fullmatch(term)
    if match is None:
        raise UserError(f"line {line.number}: {quoted(term)} is no number, label, label+1 or #label")
    name, shift = match.groups()
    if name not in names and not name.lstrip("-").isdigit():
        labels = [each for each in names if not each.startswith("#")]
        raise UserError(f"line {line.number}: there is no label {quoted(name)}; {nearest(name, labels)}")
    value, size = (names[name] if name in names else int(name)) + int(shift or 0), 1 << bits
    lowest, highest = -(size // 2), size // 2 - 1 if line.words[0] == "data" and name not in names else size - 1
    if not lowest <= value <= highest:
        raise UserError(f"line {line.number}: {value} given; {bits} bits hold {lowest} to {highest}; give more bits")
    return value % size
