"""Command ``qkv bench``."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.api.models import find_model
from qkv.cli.shared.runs import Json
from qkv.interop.files.places import is_published, may_be_name
from qkv.models.families.presets import PRESETS
from qkv.spec.files.shipped import is_shipped
from qkv.system.errors import UserError, nearest

if TYPE_CHECKING:
    from qkv.runs.bench.measure import Bench, BenchPlan, Figure

EXAMPLES = """\
qkv bench runs/my
qkv bench gpt2 --batch 1,8 --precision fp32,int8 --peers
qkv bench recipe.yaml model.num_layers=12 --prompt 128
"""

_List = "several separated by commas"


def bench_command(
    model: Annotated[
        str, typer.Argument(metavar="RUN", help="A run folder, a published checkpoint, a recipe or a model's spec.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH=VALUE]...", help="Changes of a spec, such as model.width=512.")
    ] = None,
    batch: Annotated[str, typer.Option(metavar="N,N", help=f"Batch sizes; {_List}.")] = "1,8,32",
    prompt: Annotated[str, typer.Option(metavar="N,N", help=f"Prompt lengths; {_List}.")] = "32,512",
    precision: Annotated[
        str, typer.Option(metavar="fp32,bf16,int8,int4", help=f"Precisions of the weights; {_List}.")
    ] = "fp32,bf16,int8,int4",
    new: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens to generate.")] = 64,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Repeats of each timing; the best counts.")] = 3,
    peers: Annotated[
        bool, typer.Option("--peers", help="Also measure the transformers library, with the same weights.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Output folder; default: the run's, or NAME-bench.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a model on this machine: decoding, time to the first token and forward pass, next to the memory limit.

    The memory limit is the speed of decoding if a step took only the time to read weights and decoding state once.
    Writes bench.json and bench.html with the measurements, the machine, the date and the versions.
    """
    plan = _plan(batch, prompt, precision, new, repeats, peers)
    folder = out or (Path(model) if (Path(model) / "spec.yaml").is_file() else Path(f"{Path(model).stem}-bench"))
    if folder.is_file():
        raise UserError(f"--out: {folder} is a file; name a folder")
    from qkv.report.table import print_table
    from qkv.runs.bench.page import tables

    result = _measured(model, overrides or [], plan)
    _write(result, folder)
    if as_json:
        typer.echo(json.dumps(result.plain()))
        return
    for table in tables(result):
        print_table(table.title, table.columns, table.rows)
        typer.echo()
    typer.echo(f"{folder / 'bench.html'}: the measurements as a page")


def _plan(batch: str, prompt: str, precision: str, new: int, repeats: int, peers: bool) -> BenchPlan:
    from qkv.runs.bench.measure import BenchPlan
    from qkv.runs.bench.sides import BITS

    precisions = tuple(word.strip() for word in precision.split(","))
    for name in precisions:
        if name not in BITS:
            raise UserError(f"--precision: there is no precision {name!r}; {nearest(name, BITS)}")
    return BenchPlan(_numbers("--batch", batch), _numbers("--prompt", prompt), precisions, new, repeats, peers)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word) < 1 << 24 for word in words):
        raise UserError(f"{option}: {text!r} is not a list of positive integers, such as 1,8,32")
    return tuple(int(word) for word in words)


def _measured(name: str, overrides: list[str], plan: BenchPlan) -> Bench:
    """Measure a run or a published checkpoint through its files, or a model built from a spec with random weights."""
    from qkv.runs.bench.measure import bench

    path = Path(name)
    stored = (path / "spec.yaml").is_file() or is_published(path)
    if not stored and (path.exists() or name in PRESETS or is_shipped(name) or not may_be_name(name)):
        from qkv.models.build import build

        return bench(path.stem, build(find_model(name, overrides).model).eval(), plan, _tell)
    if overrides:
        raise UserError(f"{overrides[0]!r} changes a spec, and {name} has trained weights; leave it out")
    from qkv.runs.bench.sides import BITS, through_folders
    from qkv.runs.storage.load import load

    run = load(path)
    if run.recipe.quantized is not None:
        if plan.peers:
            raise UserError(f"--peers: {name} has quantised weights; measure the original run")
        precision = next(key for key, bits in BITS.items() if bits == run.recipe.quantized.bits)
        only = replace(plan, precisions=(precision,))
        return bench(path.stem, run.model, only, _tell, lambda _: run.model)
    with tempfile.TemporaryDirectory() as folder:
        opener = through_folders(path, Path(folder))
        return bench(path.stem, opener("fp32"), plan, _tell, opener)


def _tell(figure: Figure) -> None:
    from qkv.report.figures import short
    from qkv.runs.bench.measure import UNITS

    rows = f"{figure.batch:,} × {figure.prompt:,} positions"
    line = (
        f"{figure.side} {figure.precision}, {figure.quantity}, {rows}: {short(figure.value)} {UNITS[figure.quantity]}"
    )
    typer.echo(line, err=True)


def _write(result: Bench, folder: Path) -> None:
    from qkv.runs.bench.page import page
    from qkv.runs.storage.files import clear_errors
    from qkv.system.files import write_file

    with clear_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / "bench.json", (json.dumps(result.plain(), indent=1) + "\n").encode())
        write_file(folder / "bench.html", page(result).encode())
