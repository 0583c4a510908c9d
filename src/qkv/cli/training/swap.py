"""Command ``qkv swap``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared.runs import Copy, run_or_published

EXAMPLES = """\
qkv swap runs/my 'blocks.*.mixer=linear_attention'
qkv swap runs/my blocks.3.mixer.num_kv_heads=2 --heal 500 --out runs/fewer-heads
qkv swap gpt2 'blocks.*.mixer.mask=causal & window(256)' --data my.txt --heal 0
"""


def swap_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a published checkpoint.")],
    changes: Annotated[list[str], typer.Argument(metavar="PATH=VALUE...", help="Changes, such as blocks.0.mixer=gru.")],
    heal: Annotated[int, typer.Option(metavar="STEPS", help="Training steps after the change; 0: none.")] = 100,
    data: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text to train and evaluate on; default: the run's own data.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="New run folder; default: runs/<name>-swapped.")
    ] = None,
    copy: Copy = False,
) -> None:
    """Replace a part of a trained model, keep the weights that fit, and train briefly to adapt the rest.

    Reports which weights were kept, and loss, speed, state size and maximum length before and after.
    """
    from qkv.api.functions import swap
    from qkv.report.table import print_table

    result = swap(run_or_published(run), changes, heal, data, out, copy=copy)
    print_table(str(result.run.folder), result.columns, result.rows)
    typer.echo(f"\nreport: {result.run.folder / 'report.html'}\nresume: qkv train {result.run.folder} training.steps=…")
