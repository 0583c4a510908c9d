"""Command ``qkv record``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.shared.runs import run_folder
from qkv.system.errors import UserError

EXAMPLES = """\
qkv record runs/my recipe.yaml
qkv record runs/seed1 runs/seed2 runs/seed3 recipe.yaml
"""
_SUFFIXES = (".yaml", ".yml", ".json")


def record_command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN... RECIPE", help="Finished runs, one per seed, then the recipe file.")
    ],
) -> None:
    """Record the results of finished runs in their recipe file: metrics, seeds, time, machine, versions, digests.

    The runs must have been trained with the recipe as it is in the file, or with its short form. The rest of the file,
    comments included, is unchanged.
    """
    *runs, recipe = paths
    if not runs or recipe.suffix not in _SUFFIXES:
        raise UserError(
            f"the last argument should be a recipe file, such as recipe.yaml, after one or more runs; {str(recipe)!r} "
            "given"
        )
    folders = [run_folder(run) for run in runs]
    from qkv.report.evaluation import words
    from qkv.report.table import print_table
    from qkv.training.watch.results import record

    result = record(folders, recipe)
    rows = [
        (split, words(name), figure.mean, figure.spread)
        for split, figures in result.figures.items()
        for name, figure in figures.items()
    ]
    seeds = ", ".join(map(str, result.seeds))
    title = f"{recipe}, {result.form} form, seed{'s' * (len(result.seeds) > 1)} {seeds}, {result.minutes:g} min"
    print_table(title, ["split", "metric", "mean", "spread"], rows)
