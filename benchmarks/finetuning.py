"""Fine-tuning a pretrained model on a small task: from scratch, head only, LoRA, last block, all weights.

    QKV_DATA=folder python benchmarks/finetuning.py --start runs/wikitext2_mlm
    QKV_DATA=folder python benchmarks/finetuning.py --start runs/wikitext2_mlm --only lora whole --seeds 1 2 3

Each is the recipe sst2_pretrained with the changes in ``WAYS``, for the same number of steps. For LoRA, "unmerged" is
the largest logit difference between merged and separate adapters, relative to the largest logit. An existing run is
resumed, or only read if it is finished.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import torch

import qkv
from qkv.models.build import build
from qkv.models.edit.adapt import adapt
from qkv.report.charts.chart import LineChart
from qkv.report.charts.series import Line
from qkv.report.page import Page
from qkv.report.table import print_table
from qkv.runs.run import Run
from qkv.runs.storage.load import load_adapted
from side_by_side import parser, say_where

RECIPE = "sst2_pretrained"
WAYS = {
    "scratch": ("start=null", "data.tokenizer=wordpiece(8000)", "training.optimizer=adamw(3e-4)"),
    "head": ("training.adapt=head", "training.optimizer.others.lr=1e-2"),
    "lora": ("training.adapt=lora(8)",),
    "last": ("training.adapt=last(1)",),
    "whole": (),
}
"""Name -> overrides of the recipe."""
SMOKE = (
    "start=null",
    "training.steps=2",
    "training.schedule.warmup=1",
    "training.validation.every=2",
    "model.num_layers=1",
)
COLUMNS = ("trained", "parameters", "share", "seconds", "accuracy", "seeds", "unmerged")


class Found(NamedTuple):
    """One variant and its runs by seed."""

    name: str
    runs: list[Run]
    learning: int
    unmerged: float | None

    @property
    def accuracies(self) -> list[float]:
        """Accuracy in percent on the test split, or on the validation split if there is no other."""
        return [figures(run)["accuracy"] for run in self.runs]

    def row(self) -> tuple[object, ...]:
        """Row of the table."""
        seconds = statistics.mean(
            max(row["time"] for row in run.metrics if row.get("loss") is not None) for run in self.runs
        )
        total = sum(p.numel() for p in self.runs[0].model.parameters())
        mean, several = statistics.mean(self.accuracies), " ".join(f"{a:.2f}" for a in self.accuracies)
        difference = "" if self.unmerged is None else f"{self.unmerged:.1e}"
        return (
            self.name,
            self.learning,
            f"{self.learning / total:.2%}",
            round(seconds),
            f"{mean:.2f}",
            several,
            difference,
        )


def figures(run: Run) -> dict[str, float]:
    """Metrics of the final evaluation."""
    assert run.evaluation is not None
    splits: dict[str, Any] = run.evaluation["splits"]
    return splits.get("test", splits["validation"])["figures"]


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--start", default="runs/wikitext2_mlm", help="run or published checkpoint to start from")
    options.add_argument(
        "--only", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY", help=f"variants: {', '.join(WAYS)}"
    )
    options.add_argument("--seeds", type=int, nargs="+", default=[1])
    options.add_argument("--runs", type=Path, default=Path("runs/finetuning"), help="parent of the run folders")
    options.add_argument("--data", help="other table of texts and classes")
    options.add_argument("--out", type=Path, default=Path("finetuning.html"), help="output page")
    return options.parse_args()


def learned(name: str, asked: argparse.Namespace) -> Found:
    """Train one variant with every seed."""
    data = [f"data.source={asked.data}"] if asked.data else []
    general = [f"start={asked.start}", *data, *(SMOKE if asked.smoke else ()), *WAYS[name]]
    runs = []
    for seed in asked.seeds:
        recipe = qkv.read_recipe(RECIPE, [*general, f"training.seed={seed}"])
        runs.append(qkv.train(recipe, out=asked.runs / f"{name}_{seed}"))
    recipe = runs[0].recipe
    fresh = build(recipe.model, recipe.training.seed)
    adapt(fresh, recipe.training)
    learning = sum(p.numel() for p in fresh.parameters() if p.requires_grad)
    return Found(name, runs, learning, unmerged(runs[0]) if recipe.training.adapt.kind == "lora" else None)


def unmerged(run: Run) -> float:
    """max |merged - unmerged| / max |merged| over the logits of a few rows of random ids."""
    apart = load_adapted(run.folder).model
    ids = torch.randint(0, run.tokenizer.vocab_size, (8, 32), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        merged, beside = run.model(ids)[0], apart(ids)[0]
    return float((merged - beside).abs().max() / merged.abs().max())


def page(found: list[Found]) -> str:
    """Page with the table and the curves of held-out accuracy."""
    shown = Page("Fine-tuning variants")
    shown.header("Same sentences and steps; the variants differ in the trained parameters and their initialisation.")
    shown.table(COLUMNS, [f.row() for f in found])
    lines = []
    for f in found:
        points = [(row["step"], row["val_accuracy"]) for row in f.runs[0].metrics if "val_accuracy" in row]
        lines.append(Line(f.name, [step for step, _ in points], [value for _, value in points], points=True))
    shown.chart(LineChart("Held-out accuracy", lines, "step", "share"))
    return shown.html()


def main() -> None:
    """Print the table and write the page, in the order of ``WAYS``."""
    asked = arguments()
    say_where()
    found = [learned(name, asked) for name in WAYS if name in asked.only]
    print_table("\naccuracy on the test split, in percent", list(COLUMNS), [f.row() for f in found])
    asked.out.write_text(page(found), encoding="utf-8")
    print(f"the table and the curves are in {asked.out}")


if __name__ == "__main__":
    main()
