"""Benchmark of forecasts: every contestant of a run, quantiles, and uneven time stamps.

    QKV_DATA=folder python benchmarks/forecast.py --seeds 1337 1 2 --write docs/forecasts.md

Parts: ``published``: the Transformer of the recipe, patches alone or with their linear path, whichever has the least
validation loss, beside the published figure, DLinear, and the contestant that is the best of all on the validation
part; ``errors``: MSE of all contestants; ``quantiles``: CRPS and coverage with a head for quantiles, at the shortest
horizon; ``uneven``: half of the time stamps of each window left out at random, with and without the times of the
values. Choices are made on the validation part; test figures decide nothing. A finished run is kept, so that an
interrupted benchmark goes on. ``--write`` replaces the tables of a page; of the first two, the rows of these runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import qkv
from qkv.report.table import print_table
from qkv.spec.files.overrides import override
from qkv.spec.recipe import Recipe
from side_by_side import parser, say_where, with_rows_of, write_table

PUBLISHED = {"etth1": {96: 0.375, 192: 0.414, 336: 0.431, 720: 0.449}, "ettm1": {96: 0.290, 720: 0.420}}
"""MSE of PatchTST/42, Nie et al. 2023, table 3."""
PARTS = ("published", "errors", "quantiles", "uneven")
_TIMED = ["task.dropped=0.5", "model.frontend.patch=8", "model.frontend.stride=4"]
_ANY = "wide.keeps=any"
Table = tuple[list[str], list[list[str]]]
"""Names of the columns, and rows."""


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--data", nargs="+", default=list(PUBLISHED), choices=list(PUBLISHED), help="named data sets")
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--horizons", type=int, nargs="+", help="default: those of the published figures")
    options.add_argument(
        "--seeds", type=int, nargs="+", default=[1337], help="seeds of the first horizon; the first is that of all"
    )
    options.add_argument("--steps", type=int, help="training steps; default: the recipe's")
    options.add_argument("--out", type=Path, default=Path("forecasts"), help="folder of the runs")
    options.add_argument(
        "--finished", action="store_true", help="train nothing: tables of finished runs of the recipes"
    )
    options.add_argument("--write", type=Path, help="Markdown file whose tables are replaced")
    given = options.parse_args()
    if given.smoke:
        given.data, given.horizons, given.steps = ["etth1"], [3], 2
    return given


def recipe_of(data: str, horizon: int, seed: int, changes: list[str], given: argparse.Namespace) -> Recipe:
    """Recipe of one run; of the smallest form, on a made-up table."""
    found = qkv.read_recipe(f"{data}_patches")
    steps = [f"training.steps={given.steps}", f"training.schedule.warmup={given.steps // 10}"] if given.steps else []
    chosen = [f"task.horizon={horizon}", f"training.seed={seed}", *steps, *changes]
    if given.smoke:
        small = ["model.frontend.patch=4", "model.frontend.stride=4", "training.batch_size=8", "task.context=16"]
        made = [f"data.source={_table(given.out)}", "task.parts=[0.6, 0.2, 0.2]", "training.validation.every=2"]
        chosen += [*made, *small]
    return override(found, chosen)


def _table(folder: Path) -> Path:
    """Small table of a season of 6 steps with noise."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    values, path = np.random.default_rng(0).normal(0, 0.1, 90) + np.sin(np.arange(90) * np.pi / 3), folder / "made.csv"
    path.write_text("date,OT\n" + "".join(f"{i},{value:.3f}\n" for i, value in enumerate(values)))
    return path


def run_of(
    name: str, data: str, horizon: int, seed: int, changes: list[str], given: argparse.Namespace
) -> dict[str, Any]:
    """Evaluation of a run, which is trained unless it is finished."""
    recipe = recipe_of(data, horizon, seed, changes, given)
    run = qkv.train(recipe, _folder(name, data, horizon, seed, given), on_event=lambda _: None)
    assert run.evaluation is not None
    found: dict[str, Any] = run.evaluation["splits"]
    return found


def cases(given: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """(data, horizon, seed) of each run of the recipes."""
    for data in given.data:
        for i, horizon in enumerate(given.horizons or PUBLISHED[data]):
            for seed in given.seeds if not i and data == given.data[0] else given.seeds[:1]:
                if not given.finished or (_folder("errors", data, horizon, seed, given) / "evaluation.json").exists():
                    yield data, horizon, seed


def _folder(name: str, data: str, horizon: int, seed: int, given: argparse.Namespace) -> Path:
    return given.out / f"{data}-{name}-{horizon}-{seed}"


def contestants(splits: dict[str, Any], names: Sequence[str]) -> Iterator[list[str]]:
    """Rows (contestant, validation figures, test figures) of the metrics ``names``; the first one is kept."""
    tables = [next(each for each in splits[split]["sections"] if each["kind"] == "contestants") for split in splits]
    for own in tables[0]["rows"]:
        rows = [next(row for row in table["rows"] if row[0] == own[0]) for table in tables]
        cells = [row[table["columns"].index(name)] for table, row in zip(tables, rows, strict=True) for name in names]
        yield [own[0], *cells]


def published(given: argparse.Namespace) -> Table:
    """Table of the Transformer, DLinear, and the contestant of least validation error, beside the published figure."""
    columns = ["data", "horizon", "seed", "Transformer", "test MSE", "MAE", "PatchTST/42, published", "DLinear"]
    rows = []
    for data, horizon, seed in cases(given):
        found = {row[0]: row[1:] for row in contestants(run_of("errors", data, horizon, seed, [], given), METRICS)}
        kept, best = next(iter(found)), min(found, key=lambda name: float(found[name][0]))
        own = [kept, *found[kept][2:], str(PUBLISHED[data].get(horizon, ""))]
        rows.append([data, str(horizon), str(seed), *own, found["DLinear"][2], best, found[best][2]])
    return [*columns, "automatic choice", "its MSE"], rows


METRICS = ("mse", "mae")


def errors(given: argparse.Namespace) -> Table:
    """Table of the contestants of each run; the first of each is the one that the recipe keeps."""
    rows = []
    for data, horizon, seed in cases(given):
        found = contestants(run_of("errors", data, horizon, seed, [], given), METRICS)
        rows += [[data, str(horizon), str(seed), *row] for row in found]
    return ["data", "horizon", "seed", "model", "validation MSE", "MAE", "test MSE", "MAE"], rows


def quantiles(given: argparse.Namespace) -> Table:
    """Table of CRPS and coverage of the contestants with quantiles."""
    data, horizon, seed = next(cases(given))
    splits = run_of("quantiles", data, horizon, seed, ["model.head.form=quantiles", _ANY], given)
    rows = [[row[0], row[1], *row[4:]] for row in contestants(splits, ("crps", "coverage 80", "coverage 90"))]
    return ["model", "validation CRPS", "test CRPS", "coverage of 80 %", "coverage of 90 %"], rows


def uneven(given: argparse.Namespace) -> Table:
    """Table of the MSE where half of the time stamps are left out, with and without the times of the values."""
    data, horizon, seed = next(cases(given))
    timed, blind = [*_TIMED, "model.frontend.frequencies=16", _ANY], [*_TIMED, "wide=null"]
    rows = list(contestants(run_of("times", data, horizon, seed, timed, given), ["mse"]))
    splits = run_of("without-times", data, horizon, seed, blind, given)
    rows.append(
        ["patches without times", *(f"{splits[name]['figures']['mse']:.4g}" for name in ("validation", "test"))]
    )
    return ["model", "validation MSE", "test MSE"], rows


TABLES = {"published": published, "errors": errors, "quantiles": quantiles, "uneven": uneven}


def main() -> int:
    """Run the parts, print their tables and write them into the page."""
    given = arguments()
    say_where()
    for part in given.parts:
        columns, rows = TABLES[part](given)
        print_table(f"forecasts: {part}", columns, rows)
        if given.write is not None:
            name = f"{part}: benchmarks/forecast.py"
            of_run = columns[:3] == ["data", "horizon", "seed"]
            write_table(given.write, name, columns, with_rows_of(given.write, name, rows, 3) if of_run else rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
