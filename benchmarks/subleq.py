"""Benchmark of SUBLEQ on a looped Transformer: random programs beside the interpreter, and exactness by sharpness.

    python benchmarks/subleq.py --write docs/theory.md

A program is a memory of random words and a random counter, which changes its own instructions. It counts as equal if
every word of every row equals the interpreter's. The second table lowers the sharpness of the softmax towards the
bound, at which the addressed cell has half of the weight. The third one is of the recipe ``subleq``, a model that is
trained to do the same: what is recorded in its file, beside the machine of as many cells.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import qkv
from qkv.report.table import print_table
from qkv.spec.tasks import Subleq
from qkv.theory.subleq.interpreter import next_row
from qkv.theory.subleq.machine import SHARPNESS, SubleqMachine, addressed_weight
from side_by_side import parser, say_where, write_table

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
MARGINS = (0.3, 1e-1, 1e-2, 1e-4, 1e-5, 1e-6, 1e-7, 1e-10, 1e-14)
"""Weight of the addressed cell above 1/2."""
BATCH = 50


def random_rows(count: int, bits: int, seed: int) -> torch.Tensor:
    """Rows of random words."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1 << bits, (count, (1 << bits) + 1), generator=generator)


def worst_rows(bits: int) -> torch.Tensor:
    """Rows whose cells hold the opposite bits of the one at the counter, for every counter."""
    size = 1 << bits
    rows = []
    for counter in range(size):
        for word in (0, size - 1):
            row = [size - 1 - word] * size + [counter]
            row[counter] = word
            rows.append(row)
    return torch.tensor(rows)


def equal_programs(machine: SubleqMachine, rows: torch.Tensor, steps: int) -> int:
    """Number of programs all of whose rows equal the interpreter's."""
    total = 0
    for batch in rows.split(BATCH):
        expected, right = batch.tolist(), torch.ones(len(batch), dtype=torch.bool)
        for after in machine.passes(batch, steps):
            expected = [next_row(row) for row in expected]
            right &= (after == torch.tensor(expected)).all(-1)
        total += int(right.sum())
    return total


def imitation(programs: int) -> tuple[list[str], list[list[str]], str]:
    """Columns, rows and note: recorded figures of the trained model, and programs that the machine carries out."""
    recipe = qkv.read_recipe("subleq")
    task, result = recipe.task, recipe.result
    assert isinstance(task, Subleq)
    assert result is not None
    machine, random, rows = SubleqMachine(task.bits), random_rows(programs, task.bits, seed=7), list[list[str]]()
    for steps in sorted({1, *task.instructions}):
        name = "exact_match" if steps == 1 else f"exact_match_after_{steps}"
        learned = result.figures["test"][name].mean
        rows.append([str(steps), f"{100 * learned:.2f} %", f"{equal_programs(machine, random, steps)} of {programs}"])
    note = (
        f"{task.size} cells, {recipe.model.rounds} rounds of one block of width {recipe.model.width}, trained for "
        f"{result.minutes:.1f} minutes on {recipe.training.steps * recipe.training.batch_size:,} random states."
    )
    return ["instructions", "trained: right states", "by hand: equal programs"], rows, note


def sharpness_for(bits: int, weight: float) -> float:
    """Sharpness that gives the addressed cell this weight, rounded up."""
    low, high = 0.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if addressed_weight(bits, middle) < weight else (low, middle)
    return high


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--programs", type=int, default=1000)
    options.add_argument("--steps", type=int, default=50, help="instructions of a program")
    options.add_argument("--bits", type=int, nargs="+", default=[4, 6, 8])
    options.add_argument("--write", type=Path, help="Markdown file whose tables are replaced")
    given = options.parse_args()
    if given.smoke:
        given.programs, given.steps, given.bits = 4, 3, [3]
    return given


def main() -> None:
    """Measure, print and write."""
    given = arguments()
    say_where()
    rows = []
    for bits in given.bits:
        programs = random_rows(given.programs, bits, seed=bits)
        found = [equal_programs(SubleqMachine(bits, dtype=dtype), programs, given.steps) for dtype in DTYPES.values()]
        rows.append(
            [str(bits), str(1 << bits), f"{SHARPNESS:g}", *(f"{each:,} of {given.programs:,}" for each in found)]
        )
    columns = ["bits", "cells", "sharpness", *(f"equal in {name}" for name in DTYPES)]
    print_table("random programs", columns, rows)
    bits = given.bits[0]
    worst, few, edge = worst_rows(bits), random_rows(min(200, given.programs), bits, seed=99), list[list[str]]()
    for margin in MARGINS[:2] if given.smoke else MARGINS:
        sharpness = sharpness_for(bits, 0.5 + margin)
        cells = [f"{margin:.0e}", f"{sharpness:.6f}"]
        for dtype in DTYPES.values():
            machine = SubleqMachine(bits, sharpness=sharpness, dtype=dtype)
            cells.append(f"{equal_programs(machine, worst, 1)} of {len(worst)}")
            cells.append(f"{equal_programs(machine, few, given.steps)} of {len(few)}")
        edge.append(cells)
    names = [f"{name}, {what}" for name in DTYPES for what in ("worst memories", "random programs")]
    head = ["weight above 1/2", "sharpness", *names]
    print_table(f"exactness by sharpness, {bits} bits", head, edge)
    learned = imitation(4 if given.smoke else 512)
    print_table("a model that is trained", *learned[:2])
    if given.write:
        note = f"{given.programs:,} programs of {given.steps} instructions each."
        write_table(given.write, "subleq: benchmarks/subleq.py", columns, rows, note)
        write_table(given.write, "sharpness: benchmarks/subleq.py", head, edge, f"{bits} bits.")
        write_table(given.write, "imitation: benchmarks/subleq.py", *learned)


if __name__ == "__main__":
    main()
