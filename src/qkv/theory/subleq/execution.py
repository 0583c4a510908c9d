"""Run a program on a machine: every row beside the interpreter's, and what the heads read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import torch

from qkv.lens.record import record
from qkv.theory.subleq.assembler import Program
from qkv.theory.subleq.interpreter import instructions_between, interpret, signed
from qkv.theory.subleq.machine import SubleqMachine

COLUMNS = ("step", "at", "a", "b", "c", "memory[a]", "memory[b]", "result", "goes to")
"""Columns of the table of instructions."""


@dataclass(frozen=True)
class Execution:
    """Rows that a model computed from a program, the first one included.

    ended: whether the last instruction changed nothing.   wrong: number of the first row that differs from the
    interpreter's, counted from 0 for the first row; None if all are equal.
    """

    program: Program
    rows: Sequence[Sequence[int]]
    ended: bool
    wrong: int | None

    @property
    def results(self) -> dict[str, list[int]]:
        """Numbers in the output cells of the last row, by label."""
        return self.program.results(self.rows[-1])

    @property
    def verdict(self) -> str:
        """Comparison with the interpreter, in one sentence."""
        if self.wrong is None:
            return f"all {len(self.rows) - 1:,} rows equal the interpreter's"
        return f"row {self.wrong:,} of {len(self.rows) - 1:,} differs from the interpreter's"

    def table(self) -> list[list[object]]:
        """Return a line of ``COLUMNS`` for each instruction; cells have their names, numbers their signs."""
        name, size = self.program.name, self.program.size
        return [
            [
                number,
                name(each.address),
                *map(name, each[1:4]),
                *(signed(token, size) for token in each[4:7]),
                name(each.following),
            ]
            for number, each in enumerate(instructions_between(self.rows), 1)
        ]


class HeadReading(NamedTuple):
    """Word that a head of the counter's position read. weight: softmax weight of the addressed cell.

    blurred: the bits as attention returned them, lowest first.   word: token after the rounding.
    """

    name: str
    cell: int
    weight: float
    blurred: tuple[float, ...]
    word: int


def execute(program: Program, machine: SubleqMachine, steps: int) -> Execution:
    """Run ``program`` for at most ``steps`` forward passes; the machine must have one round a pass."""
    rows = list(machine.rows(program.row, steps))
    pairs = enumerate(zip_longest(rows, interpret(program.row, steps)))
    wrong = next((number for number, (row, other) in pairs if row != other), None)
    return Execution(program, rows, len(rows) <= steps, wrong)


def readings(machine: SubleqMachine, row: Sequence[int]) -> list[HeadReading]:
    """Return what the heads at the counter's position read while one instruction is carried out."""
    points = [f"blocks.{layer}.branches.0.{point}" for layer in (0, 1) for point in ("weights", "head_outputs")]
    tap = record(machine.model, torch.tensor([list(row)]), *points)
    result = list[HeadReading]()
    for layer, names in enumerate((("a", "b", "c"), ("memory[a]", "memory[b]"))):
        weights, outputs = (tap[path][0, :, -1] for path in points[2 * layer : 2 * layer + 2])
        for name, weight, bits in zip(names, weights, outputs, strict=True):
            largest, blurred = weight.max(0), tuple(bits.tolist())
            word = sum(1 << i for i, bit in enumerate(blurred) if bit > 0.5)
            result.append(HeadReading(name, int(largest.indices), float(largest.values), blurred, word))
    return result


def reading_lines(machine: SubleqMachine, program: Program, row: Sequence[int]) -> list[list[object]]:
    """Return a line (head, cell, weight, bits as read, word) for each reading of one instruction."""
    return [
        [
            each.name,
            program.name(each.cell),
            f"{each.weight:.6f}",
            _bits(each.blurred),
            each.word,
        ]
        for each in readings(machine, row)
    ]


def _bits(values: Sequence[float]) -> str:
    return " ".join(f"{bit:.4f}" for bit in values)


def memory_over_time(execution: Execution) -> tuple[list[str], list[list[float]]]:
    """Return (names of the cells that hold something at any time, their numbers by step)."""
    size = execution.program.size
    used = [cell for cell in range(size) if any(row[cell] for row in execution.rows)]
    numbers = [[float(signed(row[cell], size)) for row in execution.rows] for cell in used]
    return [execution.program.name(cell) for cell in used], numbers
