"""Benchmark of forecasts: every contestant of a run, quantiles, and uneven time stamps.

    QKV_DATA=folder python benchmarks/forecast.py --horizons 96 336 --steps 300 --write docs/forecasts.md

Parts: ``errors``: MSE of patches alone (PatchTST), linear maps, baselines and mixture, for each horizon, beside the
published figure; ``quantiles``: CRPS and coverage of the same contestants with the head's quantiles, at the first
horizon; ``uneven``: half of the time stamps of each window left out at random, with and without the times of the
values. The choice is made on the validation part; test figures decide nothing. A finished run is kept, so that an
interrupted benchmark goes on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import qkv
from qkv.report.table import print_table
from qkv.spec.overrides import override
from qkv.spec.recipe import Recipe
from side_by_side import parser, say_where

PUBLISHED = {"etth1": {96: 0.375, 192: 0.414, 336: 0.431, 720: 0.449}, "ettm1": {96: 0.290, 720: 0.420}}
"""MSE of PatchTST/42, Nie et al. 2023, table 3."""
PARTS = ("errors", "quantiles", "uneven")
_TIMED = ["model.wide=null", "task.dropped=0.5", "model.frontend.patch=8", "model.frontend.stride=4"]


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--data", default="etth1", choices=sorted(PUBLISHED), help="named data set")
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--horizons", type=int, nargs="+", default=[96, 192, 336, 720])
    options.add_argument("--seeds", type=int, nargs="+", default=[1337])
    options.add_argument("--steps", type=int, help="training steps; default: the recipe's")
    options.add_argument("--out", type=Path, default=Path("forecasts"), help="folder of the runs")
    options.add_argument("--write", type=Path, help="Markdown file for the results")
    given = options.parse_args()
    if given.smoke:
        given.horizons, given.steps = [3], 2
    return given


def recipe_of(horizon: int, seed: int, changes: list[str], given: argparse.Namespace) -> Recipe:
    """Recipe of one run; of the smallest form, on a made-up table."""
    found = qkv.read_recipe(f"{given.data}_patches")
    steps = [f"training.steps={given.steps}", f"training.schedule.warmup={given.steps // 10}"] if given.steps else []
    chosen = [f"task.horizon={horizon}", f"training.seed={seed}", *steps, *changes]
    if given.smoke:
        small = ["model.frontend.patch=4", "model.frontend.stride=4", "training.batch_size=8", "task.context=16"]
        data = [f"data.source={_table(given.out)}", "task.parts=[0.6, 0.2, 0.2]", "training.validation.every=2"]
        chosen += [*data, *small]
    return override(found, chosen)


def _table(folder: Path) -> Path:
    """Small table of a season of 6 steps with noise."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    values, path = np.random.default_rng(0).normal(0, 0.1, 90) + np.sin(np.arange(90) * np.pi / 3), folder / "made.csv"
    path.write_text("date,OT\n" + "".join(f"{i},{value:.3f}\n" for i, value in enumerate(values)))
    return path


def run_of(name: str, horizon: int, seed: int, changes: list[str], given: argparse.Namespace) -> dict[str, Any]:
    """Evaluation of a run, which is trained unless it is finished."""
    recipe = recipe_of(horizon, seed, changes, given)
    run = qkv.train(recipe, given.out / f"{given.data}-{name}-{horizon}-{seed}", on_event=lambda _: None)
    assert run.evaluation is not None
    found: dict[str, Any] = run.evaluation["splits"]
    return found


def contestants(splits: dict[str, Any], names: tuple[str, ...]) -> Iterator[list[str]]:
    """Rows (contestant, validation figures, test figures) of the metrics ``names``."""
    tables = [next(each for each in splits[split]["sections"] if each["kind"] == "contestants") for split in splits]
    for own in tables[0]["rows"]:
        rows = [next(row for row in table["rows"] if row[0] == own[0]) for table in tables]
        cells = [row[table["columns"].index(name)] for table, row in zip(tables, rows, strict=True) for name in names]
        yield [own[0], *cells]


def errors(given: argparse.Namespace) -> tuple[list[str], list[list[str]]]:
    """Table of the contestants of each horizon and seed; the first of each is the one that is kept."""
    rows = []
    for horizon in given.horizons:
        for seed in given.seeds:
            found = list(contestants(run_of("errors", horizon, seed, [], given), ("mse", "mae")))
            published = PUBLISHED[given.data].get(horizon, "")
            rows += [[str(horizon), str(seed), *row, str(published) if row[0] == "patches" else ""] for row in found]
    return ["horizon", "seed", "model", "validation MSE", "MAE", "test MSE", "test MAE", "published"], rows


def quantiles(given: argparse.Namespace) -> tuple[list[str], list[list[str]]]:
    """Table of CRPS and coverage of the contestants with quantiles."""
    splits = run_of("quantiles", given.horizons[0], given.seeds[0], ["model.head.form=quantiles"], given)
    rows = [[row[0], *row[4:]] for row in contestants(splits, ("crps", "coverage 80", "coverage 90"))]
    return ["model", "test CRPS", "coverage of 80 %", "coverage of 90 %"], rows


def uneven(given: argparse.Namespace) -> tuple[list[str], list[list[str]]]:
    """Table of the MSE where half of the time stamps are left out, with and without the times of the values."""
    rows: list[list[str]] = []
    for name, frequencies in (("with times", 16), ("without times", 0)):
        changes = [*_TIMED, f"model.frontend.frequencies={frequencies}"]
        splits = run_of(name.replace(" ", "-"), given.horizons[0], given.seeds[0], changes, given)
        figures = [splits[split]["figures"] for split in ("validation", "test")]
        rows.append([f"patches {name}", *(f"{each['mse']:.4f}" for each in figures)])
        baselines = [[f"{each[f'mse_of_{kind}']:.4f}" for each in figures] for kind in ("repeat_last", "dlinear")]
    rows += [["repeat last", *baselines[0]], ["DLinear, gaps filled", *baselines[1]]]
    return ["model", "validation MSE", "test MSE"], rows


TABLES = {"errors": errors, "quantiles": quantiles, "uneven": uneven}


def main() -> int:
    """Run the parts, print their tables and write the page."""
    given = arguments()
    say_where()
    pages = ["# Forecasts", "Written by `benchmarks/forecast.py`."]
    for part in given.parts:
        columns, rows = TABLES[part](given)
        print_table(f"forecasts of {given.data}: {part}", columns, rows)
        lines = [columns, ["---"] * len(columns), *rows]
        pages.append(f"## {part.capitalize()}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines))
    if given.write is not None:
        given.write.write_text("\n\n".join(pages) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
