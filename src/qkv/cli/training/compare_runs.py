"""Command ``qkv compare-runs``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared.runs import page_file, run_folder

EXAMPLES = """\
qkv compare-runs runs/one runs/two
qkv compare-runs runs/seed1 runs/seed2 runs/seed3 --report seeds.html
qkv compare-runs runs/one runs/two --json
"""


def compare_runs_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Two or more run folders, made by 'qkv train'.")],
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write an HTML report, with learning curves.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare runs: the settings in which their recipes differ, metrics, steps, time, parameters and FLOPs.

    Metrics are those of the final evaluation; without one, those of the best validation. Runs may be unfinished.
    """
    folders = [run_folder(run) for run in runs]
    if report is not None:
        page_file("--report", report)
    from qkv.report.table import print_table
    from qkv.training.compare import compare_runs

    comparison = compare_runs(*folders)
    if report is not None:
        from qkv.runs.storage.files import clear_errors
        from qkv.system.files import write_file

        with clear_errors(str(report)):
            write_file(report, comparison.report().encode())
    if as_json:
        typer.echo(json.dumps(comparison.plain(), ensure_ascii=False))
        return
    tables = [(title, rows) for title, rows in comparison.tables() if rows]
    for i, (title, rows) in enumerate(tables):
        typer.echo("\n" * (i > 0), nl=False)
        print_table(title, ["", *comparison.runs], rows)
    if not comparison.settings:
        typer.echo("\nthe recipes do not differ")
