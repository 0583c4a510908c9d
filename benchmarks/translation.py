"""Comparison of five translation models at equal steps: train recipes multi30k_*.yaml; evaluate in a table and a page.

    QKV_DATA=folder python benchmarks/translation.py --quick
    QKV_DATA=folder python benchmarks/translation.py --runs runs/multi30k
    QKV_DATA=folder python benchmarks/translation.py --only transformer convolution

An existing run is resumed, or only read if it is finished. BLEU is sacreBLEU's, with its signature; tokenised BLEU uses
lower-cased words and punctuation marks, as in the tutorials it is compared with.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import qkv
from qkv.report.charts.chart import LineChart
from qkv.report.charts.series import Line
from qkv.report.page import Page
from qkv.report.table import print_table
from qkv.runs.run import Run
from qkv.spec.files.shipped import shipped
from side_by_side import parser, say_where

SMOKE = (
    "training.steps=2",
    "training.schedule.warmup=1",
    "training.batch_size=2",
    "sample.max_new_tokens=3",
    "data.columns={}",
)
COLUMNS = ("model", "parameters", "steps", "minutes", "loss", "BLEU", "BLEU tokenized", "published")


class Found(NamedTuple):
    """One finished run and its evaluation on the test split, or on the validation split if there is no other."""

    name: str
    run: Run
    evaluation: dict[str, Any]
    published: float | None

    def row(self) -> tuple[object, ...]:
        """Row of the table."""
        figures, steps = self.evaluation["figures"], self.run.recipe.training.steps
        seconds = max(row["time"] for row in self.run.metrics if row.get("loss") is not None)
        parameters = sum(p.numel() for p in self.run.model.parameters())
        scores = (f"{figures[name]:.2f}" for name in ("bleu", "bleu_tokenized"))
        return (
            self.name,
            parameters,
            steps,
            f"{seconds / 60:.1f}",
            f"{figures['loss']:.3f}",
            *scores,
            self.published or "",
        )


def arguments(names: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="MODEL", help=f"models: {', '.join(names)}"
    )
    options.add_argument("--quick", action="store_true", help="use the recipes' short forms")
    options.add_argument("--seed", type=int, default=1337)
    options.add_argument("--runs", type=Path, default=Path("runs/translation"), help="parent of the run folders")
    options.add_argument("--data", help="other table of sentence pairs")
    options.add_argument("--out", type=Path, default=Path("translation.html"), help="output page")
    return options.parse_args()


def evaluated(name: str, asked: argparse.Namespace) -> Found:
    """Train one recipe to its end and read its evaluation."""
    changes = [
        f"training.seed={asked.seed}",
        *([f"data.source={asked.data}"] if asked.data else []),
        *(SMOKE if asked.smoke else ()),
    ]
    recipe = qkv.read_recipe(f"multi30k_{name}", changes, quick=asked.quick)
    run = qkv.train(recipe, out=asked.runs / (f"{name}_quick" if asked.quick else name))
    assert run.evaluation is not None
    splits = run.evaluation["splits"]
    return Found(
        name, run, splits.get("test", splits["validation"]), recipe.published[0].value if recipe.published else None
    )


def signatures(found: list[Found]) -> list[str]:
    """Distinct sacreBLEU signatures."""
    return list(dict.fromkeys(note for f in found for note in f.evaluation["notes"] if note.startswith("BLEU:")))


def page(found: list[Found]) -> str:
    """Page with the table and the curves of held-out loss."""
    shown = Page("German to English")
    shown.header(
        "Same sentences, steps, optimizer and beam search; the models differ in how the decoder reads the source."
    )
    shown.table(COLUMNS, [f.row() for f in found])
    for signature in signatures(found):
        shown.prose(signature)
    lines = []
    for f in found:
        points = [(row["step"], row["val_loss"]) for row in f.run.metrics if "val_loss" in row]
        lines.append(Line(f.name, [step for step, _ in points], [loss for _, loss in points], points=True))
    shown.chart(LineChart("Held-out loss", lines, "step", "nats a token"))
    for f in found:
        with shown.details(f"Output of the {f.name.replace('_', ' ')}"):
            for section in (s for s in f.evaluation["sections"] if s["kind"] == "examples"):
                shown.table(section["columns"], section["rows"])
    return shown.html()


def main() -> None:
    """Print the table and write the page, best model last."""
    names = sorted(name.removeprefix("multi30k_") for name in shipped() if name.startswith("multi30k_"))
    asked = arguments(names)
    say_where()
    found = sorted(
        (evaluated(name, asked) for name in asked.only), key=lambda f: f.evaluation["figures"]["bleu_tokenized"]
    )
    print_table("\nGerman to English, test split", list(COLUMNS), [f.row() for f in found])
    print(*signatures(found), sep="\n")
    asked.out.write_text(page(found), encoding="utf-8")
    print(f"the table and the curves are in {asked.out}")


if __name__ == "__main__":
    main()
