"""Delayed recall: train each recipe recall_*.yaml and plot accuracy and gradient over distance, in a table and a page.

    python benchmarks/recall_at_distance.py
    python benchmarks/recall_at_distance.py --only rnn lstm --steps 500 --out recall.html
    python benchmarks/recall_at_distance.py --alone

A model trained on all distances can transfer from short to long ones. With ``--alone``, a separate model is also
trained for each distance.

The gradient is that of the correct logit with respect to the embedded symbol (norm, averaged over rows): before
training it shows the signal available for learning, after training the sensitivity of the model.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import qkv
from qkv.models.build import build
from qkv.report.charts.chart import LineChart
from qkv.report.charts.series import Line
from qkv.report.page import Page
from qkv.report.table import print_table
from qkv.spec.files.overrides import override
from qkv.spec.files.shipped import shipped
from qkv.spec.recipe import Recipe
from qkv.tasks.registry import build_task
from qkv.tasks.synthetic.recall import RecallTask
from side_by_side import parser, say_where

SMOKE = ("training.steps=3", "training.batch_size=2", "task.distances=[1,4]", "training.validation.batches=1")


class Curves(NamedTuple):
    """Metrics of one model at each distance, and training seconds. ``alone`` is empty without ``--alone``."""

    name: str
    distances: list[int]
    accuracy: list[float]
    alone: list[float]
    gradient: list[float]
    gradient_before: list[float]
    seconds: float


def arguments(names: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="MODEL", help=f"models: {', '.join(names)}"
    )
    options.add_argument("--steps", type=int, help="default: the recipes'")
    options.add_argument("--seed", type=int, default=1337)
    options.add_argument("--alone", action="store_true", help="also train a separate model for each distance")
    options.add_argument("--out", type=Path, default=Path("recall_at_distance.html"), help="output page")
    return options.parse_args()


def curves(name: str, asked: argparse.Namespace) -> Curves:
    """Train one recipe; measure before and after training."""
    overrides: list[str] = list(SMOKE) if asked.smoke else [f"training.seed={asked.seed}"]
    if asked.steps:
        overrides.append(f"training.steps={asked.steps}")
    recipe = qkv.read_recipe(f"recall_{name}", overrides)
    before = measured(recipe, None)
    began = time.perf_counter()
    after = learned(recipe)
    seconds = time.perf_counter() - began
    distances = sorted(set(recipe.task.distances))  # type: ignore[attr-defined]
    each = (
        [learned(override(recipe, [f"task.distances=[{distance}]"]))[0] for distance in distances]
        if asked.alone
        else []
    )
    return Curves(
        name,
        distances,
        [a for a, _ in after],
        [a for a, _ in each],
        [g for _, g in after],
        [g for _, g in before],
        seconds,
    )


def learned(recipe: Recipe) -> list[tuple[float, float]]:
    """Train a new model and measure it."""
    with tempfile.TemporaryDirectory() as folder:
        return measured(recipe, qkv.train(recipe, Path(folder) / "run", on_event=lambda _: None).model)


def measured(recipe: Recipe, model: Any) -> list[tuple[float, float]]:
    """(accuracy, gradient norm) at each distance; default: of an untrained model."""
    task = build_task(recipe.task)
    assert isinstance(task, RecallTask)
    dataset = task.open(recipe)
    model = model or build(dataset.recipe.model, recipe.training.seed)
    return [task.at_distance(model, dataset.vocabulary, distance) for distance in sorted(set(task.spec.distances))]


def page(found: list[Curves]) -> str:
    """Page with the curves of every model."""
    shown = Page("Recall at a distance")
    shown.header("A symbol is shown, filler tokens follow, and the model predicts the symbol.")
    charts = {
        "Accuracy": ("share", [Line(c.name, c.distances, c.accuracy, points=True) for c in found], False),
        "Gradient before training": (
            "norm",
            [Line(c.name, c.distances, positive(c.gradient_before), points=True) for c in found],
            True,
        ),
        "Gradient after training": (
            "norm",
            [Line(c.name, c.distances, positive(c.gradient), points=True) for c in found],
            True,
        ),
    }
    if found[0].alone:
        lines = [Line(c.name, c.distances, c.alone, points=True) for c in found]
        charts["Accuracy, separate model per distance"] = ("share", lines, False)
    for title, (unit, lines, log) in charts.items():
        shown.chart(
            LineChart(title, lines, "tokens between symbol and query", unit, x_log=True, y_log=log, y_zero=not log)
        )
    shown.prose("Gradient norm of the correct logit with respect to the embedded symbol. Exact zeros are not drawn.")
    return shown.html()


def positive(values: list[float]) -> list[float | None]:
    """Positive values; others as None, for a logarithmic axis."""
    return [value if value > 0 else None for value in values]


def main() -> None:
    """Print the table and write the page."""
    names = sorted(name.removeprefix("recall_") for name in shipped() if name.startswith("recall_"))
    asked = arguments(names)
    say_where()
    found = [curves(name, asked) for name in asked.only]
    columns = ["model", "figure", *(str(distance) for distance in found[0].distances), "seconds"]
    rows: list[list[object]] = []
    for c in found:
        rows.append([c.name, "accuracy", *(f"{value:.3f}" for value in c.accuracy), f"{c.seconds:.0f}"])
        if c.alone:
            rows.append(["", "separate models", *(f"{value:.3f}" for value in c.alone), ""])
        rows.append(["", "gradient before", *(f"{value:.1e}" for value in c.gradient_before), ""])
        rows.append(["", "gradient after", *(f"{value:.1e}" for value in c.gradient), ""])
    print_table("\nrecall by distance: tokens between the symbol and the query", columns, rows)
    asked.out.write_text(page(found), encoding="utf-8")
    print(f"the curves are in {asked.out}")


if __name__ == "__main__":
    main()
