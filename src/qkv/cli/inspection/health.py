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
    from qkv.api.functions import health
    from qkv.lens.health.page import COLUMNS, verdict_rows
    from qkv.report.table import print_table

    diagnosis = health(folder)
    if as_json:
        typer.echo(json.dumps(diagnosis.plain()))
    else:
        print_table(str(folder), COLUMNS, verdict_rows(diagnosis.verdicts))
        for note in diagnosis.notes:
            typer.echo(note)
    if not no_page:
        typer.echo(f"\npage: {diagnosis.save()}", err=as_json)
    if any(verdict.severity == "alarm" or (strict and verdict.ill) for verdict in diagnosis.verdicts):
        raise typer.Exit(ILL)
