"""A looped Transformer with weights set by hand runs SUBLEQ: every row equals an interpreter's, every vector a code."""

from __future__ import annotations

import math
import re
from itertools import islice

import pytest
import torch
from torch import Tensor

from qkv.lens.record import record
from qkv.system.errors import UserError
from qkv.theory.subleq.assembler import assemble, program_source
from qkv.theory.subleq.execution import execute, readings
from qkv.theory.subleq.interpreter import interpret, next_row
from qkv.theory.subleq.machine import SubleqMachine, addressed_weight


def oracle(memory: list[int], counter: int) -> tuple[list[int], int]:
    """One instruction on signed numbers, as the papers write it."""
    size = len(memory)
    a, b, c = memory[counter] % size, memory[(counter + 1) % size] % size, memory[(counter + 2) % size] % size
    difference = memory[b] - memory[a]
    while difference >= size // 2:
        difference -= size
    while difference < -size // 2:
        difference += size
    memory[b] = difference
    return memory, (c if difference <= 0 else (counter + 3) % size)


def random_rows(count: int, bits: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1 << bits, (count, (1 << bits) + 1), generator=generator)


def test_the_interpreter_follows_the_rules() -> None:
    for row in random_rows(20, 5).tolist():
        memory, counter = [cell - 32 if cell >= 16 else cell for cell in row[:-1]], row[-1]
        for after in islice(interpret(row, 30), 1, None):
            memory, counter = oracle(memory, counter)
            assert after == [*(cell % 32 for cell in memory), counter]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_programs_give_the_rows_of_the_interpreter(dtype: torch.dtype) -> None:
    """36 random memories, which change their own instructions."""
    for bits in (3, 4, 5):
        machine, rows = SubleqMachine(bits, dtype=dtype), random_rows(12, bits, seed=bits)
        expected = rows.tolist()
        for after in machine.passes(rows, 12):
            expected = [next_row(row) for row in expected]
            assert after.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0.01, 1.0, 50.0])
def test_no_error_is_left_in_any_vector(dtype: torch.dtype, temperature: float) -> None:
    """After a round the residual stream is, bit for bit, the embedding of the next row."""
    machine, rows = SubleqMachine(4, 3, 5.0, temperature, dtype), random_rows(8, 4, seed=1)
    tap = record(machine.model, rows, "frontend.output", "blocks.2.branches.4.residual_after")
    for vectors in tap.calls("blocks.2.branches.4.residual_after"):
        rows = torch.tensor([next_row(row) for row in rows.tolist()])
        assert torch.equal(vectors, record(machine.model, rows, "frontend.output")["frontend.output"])


def test_a_pass_of_several_rounds_is_several_instructions() -> None:
    rows = random_rows(4, 4, seed=2)
    (after,) = SubleqMachine(4, rounds=5).passes(rows)
    assert after.tolist() == [list(interpret(row, 5))[-1] for row in rows.tolist()]


def test_the_weight_of_the_addressed_cell_is_what_the_formula_says() -> None:
    machine = SubleqMachine(5, sharpness=4.0)
    row = assemble("subleq 7 9 0", 5).row
    for reading in readings(machine, row):
        assert math.isclose(reading.weight, addressed_weight(5, 4.0), rel_tol=1e-5)
    assert [(each.name, each.cell) for each in readings(machine, row)] == [
        ("a", 0),
        ("b", 1),
        ("c", 2),
        ("memory[a]", 7),
        ("memory[b]", 9),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_worst_memory_is_read_just_above_the_bound(dtype: torch.dtype) -> None:
    """All other cells hold the opposite bits of the one that is read. Below the bound, the machine is refused."""
    bits, low, high = 4, 0.5, 8.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if addressed_weight(bits, middle) > 0.5 else (middle, high)
    machine = SubleqMachine(bits, sharpness=high * 1.0001, dtype=dtype)
    for counter in range(16):
        for word in (0, 15):
            row = [15 - word] * 16 + [counter]
            row[counter] = word
            (after,) = machine.passes(torch.tensor([row]))
            assert after[0].tolist() == next_row(row)
    with pytest.raises(UserError, match=re.escape("the addressed one of 16 cells 0.5 of the softmax, and it needs")):
        SubleqMachine(bits, sharpness=low * 0.999)


@pytest.mark.parametrize(
    ("name", "inputs", "results"),
    [
        ("add", {"x": [-100], "y": [58]}, {"sum": [-42]}),
        ("multiply", {"x": [-11], "y": [-9]}, {"product": [99]}),
        ("multiply", {"x": [5], "y": [0]}, {"product": [0]}),
        ("sort", {"list": [5, -3, 8]}, {"list": [-3, 5, 8]}),
    ],
)
def test_programs_of_the_package(name: str, inputs: dict[str, list[int]], results: dict[str, list[int]]) -> None:
    program = assemble(program_source(name), 8, inputs)
    execution = execute(program, SubleqMachine(8), 1000)
    assert execution.ended
    assert execution.wrong is None
    assert execution.results == results


def test_the_sort_program_sorts() -> None:
    generator = torch.Generator().manual_seed(3)
    for count in (2, 5, 12):
        numbers = torch.randint(-60, 60, (count,), generator=generator).tolist()
        program = assemble(program_source("sort"), 8, {"list": numbers})
        *_, last = interpret(program.row, 10_000)
        assert program.results(last) == {"list": sorted(numbers)}


def test_multiplication_of_all_small_numbers() -> None:
    source = program_source("multiply")
    for x in range(-4, 5):
        for y in range(-4, 5):
            program = assemble(source, 8, {"x": [x], "y": [y]})
            *_, last = interpret(program.row, 1000)
            assert program.results(last) == {"product": [x * y]}


def test_a_wrong_row_is_seen() -> None:
    machine, program = SubleqMachine(6), assemble(program_source("add"), 6)
    with torch.no_grad():
        machine.model.state_dict()["blocks.1.branches.3.body.down.weight"].zero_()  # no subtraction
    assert execute(program, machine, 20).wrong == 1


def test_labels_expressions_and_comments() -> None:
    program = assemble("start: subleq x, y+1 ; comment\n subleq next #y start-0\n\nx: data -1\ny: data 2 here\n", 4)
    assert program.row[:10] == (6, 8, 3, 6, 2, 0, 15, 2, 7, 0)
    assert program.labels == {"start": 0, "x": 6, "y": 7, "zero": 9}
    assert [program.name(cell) for cell in (0, 2, 8)] == ["start", "start+2", "y+1"]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("add x", "line 1: add has 2 operands, but 1 are given"),
        ("subleq 1 2 3 4", "line 1: subleq has 2 or 3 operands"),
        ("\nsubtact 1 2", "line 2: no operation 'subtact'; did you mean 'subtract'?"),
        ("subleq x 1", "line 1: there is no label 'x'; allowed: here, next, zero"),
        ("x: data 1\nx: data 2", "line 2: the label 'x' is there already"),
        ("here: data 1", "line 1: the label 'here' is reserved"),
        ("x: data 8", "line 1: 8 given; 4 bits hold -8 to 7"),
        ("subleq 1*2 3", "line 1: '1*2' is no number, label, label+1 or #label"),
        ("output sum", "line 1: there is no label 'sum'; allowed: zero"),
        ("data " + "1 " * 17, "the program has 18 cells, but the memory has 16; give more bits"),
    ],
)
def test_what_is_not_understood_is_refused(source: str, sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        assemble(source, 4)
