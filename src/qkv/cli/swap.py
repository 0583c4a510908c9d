"""``qkv swap``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.runs import Copy, run_or_published

EXAMPLES = """\
qkv swap runs/my 'blocks.*.mixer=linear_attention'
qkv swap runs/my blocks.3.mixer.num_kv_heads=2 --heal 500 --out runs/fewer-heads
qkv swap gpt2 'blocks.*.mixer.mask=causal & window(256)' --data my.txt --heal 0
"""


def swap_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a published checkpoint.")],
    changes: Annotated[list[str], typer.Argument(metavar="PATH=VALUE...", help="What is changed, such as blocks.0.mixer=gru.")],
    heal: Annotated[int, typer.Option(metavar="STEPS", help="How long it is trained afterwards; 0: not at all.")] = 100,
    data: Annotated[str | None, typer.Option(metavar="TEXT", help="What it is trained and measured on; default: the run's own.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The new run folder; default: runs/ and the name, swapped.")] = None,
    copy: Copy = False,
) -> None:
    """Put another part into a trained model. Weights that fit stay; a short training heals the rest.

    Says which weights were kept, and shows loss, speed, state and longest length before and after.
    """
    from qkv.library import swap
    from qkv.report.table import print_table

    found = swap(run_or_published(run), changes, heal, data, out, copy=copy)
    print_table(str(found.run.folder), found.columns, found.rows)
    typer.echo(f"\nreport: {found.run.folder / 'report.html'}\ngo on:  qkv train {found.run.folder} training.steps=…")
