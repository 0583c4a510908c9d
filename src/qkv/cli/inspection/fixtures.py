"""Command ``qkv fixtures``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared.runs import ModelFolder, output_file, run_or_published

EXAMPLES = """\
qkv fixtures ./Qwen3-0.6B
qkv fixtures ./Qwen3-0.6B --text "Once upon a time" --dtype fp64
qkv fixtures runs/my --point weights --point "blocks.*.branches.0.output"
"""


def fixtures_command(
    run: ModelFolder,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Output file; default: RUN-fixtures.safetensors beside it.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Text of a row; repeatable. Default: random rows.")
    ] = None,
    point: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name, path or pattern of a point; repeatable. Default: all points."),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="Number of random rows.")] = 2,
    length: Annotated[int, typer.Option(min=1, metavar="N", help="Positions of a random row.")] = 16,
    new: Annotated[int, typer.Option(min=0, metavar="N", help="Number of tokens to generate greedily.")] = 8,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of random rows.")] = 0,
    dtype: Annotated[str, typer.Option(metavar="fp32|fp64", help="Precision of the computation.")] = "fp32",
) -> None:
    """Write inputs, the values at every point and outputs of a model to a safetensors file.

    The values are computed by the reference implementations, part by part, so that authors of other engines can find
    the first part in which theirs differ.
    """
    source = run_or_published(run)
    file = output_file("--out", out or source.with_name(f"{source.name}-fixtures.safetensors"), source)
    from qkv.api.functions import write_fixtures

    written = write_fixtures(source, file, text or (), point or ("*",), rows, length, new, seed, dtype)
    typer.echo(f"{written.file}: {written.count:,} tensors, {written.nbytes / 1e6:,.1f} MB")
