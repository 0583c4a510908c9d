"""Command ``qkv health``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from qkv.cli.shared.runs import Json, RunFolder, run_folder

EXAMPLES = """\
qkv health runs/my
qkv health runs/my --strict && echo well
qkv health runs/my --json
"""
ILL = 3
"""Exit code for an alarm, with --strict for a warning too; 1 and 2 are a bug and unusable input, as everywhere."""
PAGE = "health.html"


def health_command(
    run: RunFolder,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 3 for warnings, too.")] = False,
    no_page: Annotated[bool, typer.Option("--no-page", help="Print only, and write no page.")] = False,
    as_json: Json = False,
) -> None:
    """Say what is wrong with a run, and how to cure it.

    Each verdict compares a measured value with a limit: of the curves of the run, of what it recorded of its layers
    while it was trained, of its model on held-out rows, of its data, and of the last runs of the same recipe beside it.
    The page health.html in the run's folder also shows the recorded curves. The exit code is 3 if there is an alarm.
    """
    folder = run_folder(run)
    from qkv.lens.health.examine import examine
    from qkv.lens.health.page import COLUMNS, health_page, verdict_rows
    from qkv.lens.health.records import read_records
    from qkv.report.table import print_table
    from qkv.runs.storage.files import clear_errors
    from qkv.system.files import write_file

    verdicts, notes = examine(folder)
    if as_json:
        typer.echo(json.dumps({"run": str(folder), "verdicts": [v.plain() for v in verdicts], "notes": notes}))
    else:
        print_table(str(folder), COLUMNS, verdict_rows(verdicts))
        for note in notes:
            typer.echo(note)
    if not no_page:
        page = folder / PAGE
        with clear_errors(str(page)):
            write_file(page, health_page(str(folder), verdicts, read_records(folder), notes))
        typer.echo(f"\npage: {page}", err=as_json)
    ill = [verdict for verdict in verdicts if verdict.severity == "alarm" or (strict and verdict.ill)]
    if ill:
        raise typer.Exit(ILL)
