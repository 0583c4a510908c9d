"""Command ``qkv subleq``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from qkv.cli.shared.runs import Json, page_file
from qkv.system.errors import UserError, quoted

if TYPE_CHECKING:
    from qkv.theory.subleq.execution import Execution
    from qkv.theory.subleq.machine import SubleqMachine

EXAMPLES = """\
qkv subleq add --input x=3 --input y=4
qkv subleq multiply --input x=-6 --input y=7 --out multiply.html
qkv subleq sort --input list=5,-3,8,1
qkv subleq my_program.subleq --bits 6 --dtype fp64
"""
DTYPES = ("fp32", "fp64")
_PRINTED, _READ = 24, 5
"""Number of instructions printed without --all, and of steps whose readings the page shows."""


class _MachineOptions(NamedTuple):
    """Options on the model."""

    bits: Annotated[int, typer.Option(metavar="N", help="Bits of a word; the memory has 2^N cells.")] = 8
    sharpness: Annotated[
        float, typer.Option(metavar="S", help="Logit by which a cell loses for each wrong bit of its address.")
    ] = 8.0
    temperature: Annotated[float, typer.Option(metavar="T", help="Temperature of every softmax.")] = 1.0
    dtype: Annotated[str, typer.Option(metavar="|".join(DTYPES), help="Precision of the weights.")] = "fp32"


class _OutputOptions(NamedTuple):
    """Options on what is printed and written."""

    all_steps: Annotated[bool, typer.Option("--all", help="Print every instruction.")] = False
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page with every step.")] = None
    as_json: Json = False


def subleq_command(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="A file, or a program of the package: add, multiply, sort.")
    ],
    *,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="LABEL=N,…", help="Numbers that replace the data at a label; repeatable."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of instructions.")] = 10_000,
    machine: _MachineOptions,
    output: _OutputOptions,
) -> None:
    """Run a SUBLEQ program on a looped Transformer whose weights are set by hand (Giannou et al. 2023), instruction by
    instruction, and compare every row with an interpreter's.

    SUBLEQ is a computer with one instruction: subtract memory[a] from memory[b], and go to c if the result is at most
    0. The exit code is 1 if a row differs.
    """
    from qkv.theory.subleq.assembler import assemble, program_source
    from qkv.theory.subleq.execution import execute

    page = None if output.out is None else page_file("--out", output.out, program)
    source = program_source(program)
    code = assemble(source, _checked_bits(machine.bits), dict(map(_numbers, inputs or [])))
    model = _machine(machine)
    execution = execute(code, model, steps)
    if page is not None:
        _write(page, f"SUBLEQ: {Path(program).stem}", source, model, execution)
    if output.as_json:
        typer.echo(json.dumps(_plain(execution)))
    else:
        _tell(execution, output.all_steps, page)
    if execution.wrong is not None:
        raise typer.Exit(1)


def _checked_bits(bits: int) -> int:
    from qkv.theory.subleq.machine import check_bits

    check_bits(bits)
    return bits


def _machine(options: _MachineOptions) -> SubleqMachine:
    import torch

    from qkv.theory.subleq.machine import SubleqMachine

    if options.dtype not in DTYPES:
        raise UserError(f"--dtype: {quoted(options.dtype)} given; allowed: {', '.join(DTYPES)}")
    if not options.temperature > 0:
        raise UserError(f"--temperature: {options.temperature:g} given; allowed: above 0")
    dtype = torch.float64 if options.dtype == "fp64" else torch.float32
    return SubleqMachine(options.bits, 1, options.sharpness, options.temperature, dtype)


def _numbers(text: str) -> tuple[str, list[int]]:
    """Parse ``label=1,2,3``."""
    label, equals, numbers = text.partition("=")
    try:
        if not equals:
            raise ValueError
        return label.strip(), [int(number) for number in numbers.split(",")]
    except ValueError:
        raise UserError(f"--input: {quoted(text)} given; write a label and whole numbers, such as x=3,-1") from None


def _plain(execution: Execution) -> dict[str, Any]:
    fields = {"results": execution.results, "instructions": len(execution.rows) - 1, "ended": execution.ended}
    return {**fields, "equal": execution.wrong is None, "rows": [list(row) for row in execution.rows]}


def _tell(execution: Execution, every: bool, page: Path | None) -> None:
    from qkv.report.table import print_table
    from qkv.theory.subleq.execution import COLUMNS

    table = execution.table()
    cut = 0 if every else max(0, len(table) - _PRINTED)
    first = table[: _PRINTED // 2] if cut else table
    print_table("", COLUMNS, [*first, *([["…"]] if cut else []), *(table[-_PRINTED // 2 :] if cut else [])])
    typer.echo()
    for name, numbers in execution.results.items():
        typer.echo(f"{name} = {', '.join(map(str, numbers))}")
    end = "ended" if execution.ended else "stopped by --steps"
    typer.echo(f"{end} after {len(execution.rows) - 1:,} instructions; {execution.verdict}")
    if page is not None:
        typer.echo(f"page: {page}")


def _write(page: Path, title: str, source: str, machine: SubleqMachine, execution: Execution) -> None:
    from qkv.report.theory.subleq import SubleqPage
    from qkv.runs.storage.files import clear_errors
    from qkv.system.files import write_file
    from qkv.theory.subleq.execution import COLUMNS, memory_over_time, reading_lines

    cells, memory = memory_over_time(execution)
    results = "; ".join(f"{name} = {', '.join(map(str, numbers))}" for name, numbers in execution.results.items())
    steps = [reading_lines(machine, execution.program, row) for row in execution.rows[:-1][:_READ]]
    verdict, correct = execution.verdict, execution.wrong is None
    content = SubleqPage(
        title, source, results, verdict, correct, machine.sentences(), COLUMNS, execution.table(), cells, memory, steps
    )
    with clear_errors(str(page)):
        write_file(page, content.html().encode())
