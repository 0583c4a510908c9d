"""Command ``qkv quantize``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared.runs import Copy, run_or_published

EXAMPLES = """\
qkv quantize runs/my
qkv quantize runs/my runs/small --bits 4
qkv quantize gpt2 --bits 8 --data my.txt
"""


def quantize_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a published checkpoint.")],
    out: Annotated[
        Path | None, typer.Argument(metavar="[OUT]", help="New run folder; default: runs/<name>-<bits>bit.")
    ] = None,
    bits: Annotated[int, typer.Option(metavar="16|8|4", help="Bits of a weight; 16: bf16.")] = 8,
    group: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Weights per scale, a multiple of 32; 0: one row. Default: 32 for 4 bits, else 0."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="FILE", help="Measure on this file; default: the run's validation data.")
    ] = None,
    batches: Annotated[int | None, typer.Option(metavar="N", help="Measure on N evenly spread batches.")] = None,
    copy: Copy = False,
) -> None:
    """Write a trained model with weights in fewer bits as a new run, which takes less memory and generates faster.

    Shows the metrics of its task and the bytes of its weights before and after. A quantised run cannot be trained.
    """
    from qkv.api.functions import quantize
    from qkv.report.table import print_table

    result = quantize(run_or_published(run), out, bits, group, data, batches, copy)
    print_table(str(result.run.folder), result.columns, result.rows)
    for note in result.notes:
        typer.echo(note)
    typer.echo(f"\nreport: {result.run.folder / 'report.html'}")
