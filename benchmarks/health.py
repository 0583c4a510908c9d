"""Benchmark of ``qkv health``: planted faults that it finds, and good runs on which it says nothing.

    python benchmarks/health.py --write benchmarks/results/health.md

Every fault is planted in a small run that is otherwise well, with three seeds. A fault is found if one of the checks
that are meant for it warns. A warning of any other check counts as false, unless it names a consequence of the fault.
The good runs are the same runs without a fault, and the short forms of recipes that ship with the package whose data
is present (``QKV_DATA``).
"""

from __future__ import annotations

import argparse
import csv
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from qkv.data.batching.batch import Batch
from qkv.lens.health.examine import examine
from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.report.table import print_table
from qkv.spec.files.overrides import override
from qkv.spec.files.shipped import shipped
from qkv.spec.files.yaml_io import read_recipe
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import TextDataset
from qkv.training.loop import train
from side_by_side import parser, say_where, write_table

SEEDS = (1, 2, 3)
WORDS = 40
RATE = 3e-3
GOOD = (
    "sorting",
    "copying",
    "associative_recall",
    "recall_attention",
    "recall_gru",
    "recall_lstm",
    "recall_causal_convolution",
    "char_shakespeare_cpu",
    "sst2_classifier",
    "wnut17_tagger",
    "cora_nodes",
    "fashion_mnist_patches",
    "fsdd_digits",
)
"""Recipes whose short forms are good runs, and take less than a minute each."""


@dataclass(frozen=True)
class Fault:
    """Planted fault.

    checks: names of the checks that are meant for it.   consequences: names of checks that may warn as well.
    overrides: changes of the recipe.   spoil: changes the model before training.   rows: changes the table.
    bad_step: step whose batch has random targets.
    """

    about: str
    checks: tuple[str, ...]
    consequences: tuple[str, ...] = ()
    table: bool = False
    overrides: tuple[str, ...] = ()
    spoil: Callable[[Transformer], None] = lambda model: None
    rows: Callable[[Rows, random.Random], None] = lambda rows, draw: None
    bad_step: int | None = None


Row = dict[str, str]
Rows = dict[str, list[Row]]


def text(draw: random.Random, words: int = 12_000) -> str:
    """Text of a small made-up language: each word has five successors."""
    names = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 5))) for _ in range(WORDS)]
    follow = {name: draw.choices(names, k=5) for name in names}
    word, written = names[0], list[str]()
    for _ in range(words):
        word = draw.choice(follow[word])
        written.append(word)
    return " ".join(written)


def table(draw: random.Random) -> Rows:
    """Table of four classes, each with words of its own among others."""
    names = ["".join(draw.choices("klmnopqrstuvw", k=5)) for _ in range(200)]
    own = [names[10 * c : 10 * c + 10] for c in range(4)]

    def row() -> Row:
        label = draw.randrange(4)
        words = [*draw.choices(names[40:], k=draw.randint(5, 8)), *draw.choices(own[label], k=4)]
        draw.shuffle(words)
        return {"text": " ".join(words), "label": "abcd"[label]}

    return {name: [row() for _ in range(count)] for name, count in (("train", 800), ("validation", 300), ("test", 300))}


def repeat_rows(rows: Rows, draw: random.Random) -> None:
    """Repeat 40 % of the training rows."""
    rows["train"] += draw.sample(rows["train"], 320)


def leak_rows(rows: Rows, draw: random.Random) -> None:
    """Put copies of training rows into the test rows."""
    rows["test"][:30] = draw.sample(rows["train"], 30)


def wrong_labels(rows: Rows, draw: random.Random) -> None:
    """Give 10 % of all rows another label."""
    for part in rows.values():
        for row in draw.sample(part, len(part) // 10):
            row["label"] = draw.choice([label for label in "abcd" if label != row["label"]])


def long_rows(rows: Rows, draw: random.Random) -> None:
    """Make one training row in twenty very long."""
    for row in draw.sample(rows["train"], len(rows["train"]) // 20):
        row["text"] = " ".join([row["text"]] * 8)


def few_rows(rows: Rows, draw: random.Random) -> None:
    """Keep 60 training rows, and draw the labels of a third of all rows at random."""
    del rows["train"][60:]
    for part in rows.values():
        for row in draw.sample(part, len(part) // 3):
            row["label"] = draw.choice("abcd")


@torch.no_grad()
def large_queries(model: Transformer) -> None:
    """Make the queries and keys of one layer 80 times as large."""
    attention = model.get_submodule("blocks.0.branches.0.body")
    queries, keys, _ = attention.sizes  # type: ignore[misc]
    attention.qkv.weight[: queries + keys] *= 80  # type: ignore[index, union-attr]


@torch.no_grad()
def silent_head(model: Transformer) -> None:
    """Set the values and the outputs of one head to zero."""
    attention = model.get_submodule("blocks.1.branches.0.body")
    queries, keys, _ = attention.sizes  # type: ignore[misc]
    size = attention.value_dim  # type: ignore[assignment]
    attention.qkv.weight[queries + keys : queries + keys + size] = 0  # type: ignore[index, union-attr, operator]
    attention.qkv.bias[queries + keys : queries + keys + size] = 0  # type: ignore[index, union-attr, operator]
    attention.output.weight[:, :size] = 0  # type: ignore[index, union-attr]


@torch.no_grad()
def dead_units(model: Transformer) -> None:
    """Set the biases of the units of one layer far below zero."""
    model.get_parameter("blocks.1.branches.1.body.up.bias").fill_(-30)


@torch.no_grad()
def large_logits(model: Transformer) -> None:
    """Make the last norm's output 1,000 times as large."""
    model.get_parameter("norm.weight").fill_(1000)


def still_layer(model: Transformer) -> None:
    """Switch the gradients of a block off."""
    model.get_submodule("blocks.1").requires_grad_(False)


LARGE_STEPS = ("warmup", "spikes", "divergence", "learning", "logits", "attention", "dead_units", "update_ratio")
FAULTS: dict[str, Fault] = {
    "learning rate 30 times too high": Fault(
        f"lr {30 * RATE:g}",
        ("update_ratio", "divergence"),
        LARGE_STEPS,
        overrides=(f"training.optimizer.lr={30 * RATE}",),
    ),
    "learning rate far too low": Fault(
        "lr 1e-7", ("update_ratio", "learning"), overrides=("training.optimizer.lr=1e-7",)
    ),
    "no warm-up": Fault(
        "lr 0.05 from the first step",
        ("warmup",),
        LARGE_STEPS,
        overrides=("training.optimizer.lr=0.05", "training.schedule=linear(warmup=0)"),
    ),
    "one bad batch": Fault("random targets in step 120", ("spikes",), bad_step=120),
    "large logits": Fault(
        "last norm × 1,000", ("logits",), ("learning", "warmup", "spikes", "gradients"), spoil=large_logits
    ),
    "dead units": Fault("biases of -30 before ReLU", ("dead_units",), ("still_layers", "gradients"), spoil=dead_units),
    "a head that does nothing": Fault("values and outputs of zero", ("idle_heads",), spoil=silent_head),
    "attention collapse": Fault("queries and keys × 80", ("attention",), ("gradients",), spoil=large_queries),
    "a layer that stands still": Fault("no gradient in block 1", ("still_layers",), spoil=still_layer),
    "repeated rows": Fault("40 % of the rows twice", ("duplicates",), table=True, rows=repeat_rows),
    "leaking test rows": Fault("10 % of the test rows", ("leaks",), table=True, rows=leak_rows),
    "wrong labels": Fault("10 % of the labels", ("labels",), table=True, rows=wrong_labels),
    "padding": Fault("one row in twenty 8 × as long", ("padding",), table=True, rows=long_rows),
    "overfitting": Fault("60 rows, some labels at random", ("overfitting",), ("labels",), table=True, rows=few_rows),
}
HEALTHY = {"text": Fault("no fault", ()), "table": Fault("no fault", (), table=True)}


def recipe_of(fault: Fault, seed: int, folder: Path, steps: int, changes: Sequence[str] = ()) -> Recipe:
    """Write the data of a run and return its recipe, with ``changes`` before those of the fault."""
    draw = random.Random(seed)
    common: dict[str, Any] = {
        "steps": steps,
        "batch_size": 16,
        "optimizer": f"adamw(lr={RATE})",
        "schedule": "cosine(warmup=20)",
        "seed": seed,
        "validation": {"every": max(1, steps // 10), "batches": 8},
        "sample_every": 10 * steps,
    }
    branches = ["attention(num_heads=4)", "feed_forward(activation=relu)"]
    model: dict[str, Any] = {"width": 32, "num_layers": 2, "context_length": 32, "blocks": [{"branches": branches}]}
    if not fault.table:
        path = folder / "text.txt"
        path.write_text(text(draw))
        plain: dict[str, Any] = {"data": {"source": str(path), "tokenizer": "characters"}}
    else:
        rows = table(draw)
        fault.rows(rows, draw)
        files = {name: folder / f"{name}.csv" for name in rows}
        for name, path in files.items():
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, ["text", "label"])
                writer.writeheader()
                writer.writerows(rows[name])
        source = {"source": str(files["train"]), "validation": str(files["validation"]), "test": str(files["test"])}
        plain = {"data": {**source, "tokenizer": "words"}, "task": "classification"}
        model |= {
            "context_length": 128,
            "blocks": [{"branches": ["attention(num_heads=4, mask=full)", branches[1]]}],
            "head": "classification",
        }
    recipe = Recipe.parse({**plain, "model": model, "training": common})
    return override(recipe, [*changes, *fault.overrides])


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """Context manager in which models and batches have the fault."""
    read = TextDataset.batch

    def spoiled(*args: Any, **options: Any) -> Transformer:
        model = build(*args, **options)
        fault.spoil(model)
        return model

    def batch(data: TextDataset, step: int) -> Batch:
        good = read(data, step)
        if step + 1 != fault.bad_step:
            return good
        noise = torch.randint(
            int(good.targets.max()) + 1, good.targets.shape, generator=torch.Generator().manual_seed(0)
        )
        return replace(good, targets=noise)

    with ExitStack() as stack:
        stack.enter_context(patch("qkv.training.setup.build", spoiled))
        stack.enter_context(patch.object(TextDataset, "batch", batch))
        yield


@dataclass
class Outcome:
    """Warnings on one run: names of the checks, and their sentences. seconds: of training and of the examination."""

    warnings: dict[str, str] = field(default_factory=dict)
    seconds: tuple[float, float] = (0.0, 0.0)


def outcome_of(recipe: Recipe, folder: Path, fault: Fault) -> Outcome:
    """Train a run with a fault, and examine it."""
    began = time.perf_counter()
    with planted(fault):
        try:
            train(recipe, folder, on_event=lambda event: None)
        except UserError as error:
            if not (folder / "spec.yaml").exists():
                raise
            print(f"  {error}")
        trained = time.perf_counter()
        verdicts = examine(folder).verdicts
    times = (trained - began, time.perf_counter() - trained)
    return Outcome({verdict.check: verdict.sentence for verdict in verdicts if verdict.ill}, times)


def results(given: argparse.Namespace) -> Iterator[tuple[str, Fault | None, int, Outcome]]:
    """Yield (name, fault, seed, outcome) of every run."""
    faults = {**HEALTHY, **FAULTS}
    for name in given.only or faults:
        for seed in SEEDS[: given.seeds]:
            with tempfile.TemporaryDirectory() as place:
                fault, folder = faults[name], Path(place)
                recipe = recipe_of(fault, seed, folder, given.steps, given.change)
                yield name, fault if fault.checks else None, seed, outcome_of(recipe, folder / "run", fault)
    for name in given.recipes:
        with tempfile.TemporaryDirectory() as place:
            try:
                recipe = quick(name)
                yield name, None, recipe.training.seed, outcome_of(recipe, Path(place) / "run", HEALTHY["text"])
            except UserError as error:
                print(f"left out: {name}: {error}")


def quick(name: str) -> Recipe:
    """Short form of a recipe of the package."""
    return read_recipe(shipped()[name], quick=True)


@dataclass
class Tally:
    """Counts over all runs: faults that are found or missed, warnings that are false, and good runs."""

    found: int = 0
    missed: int = 0
    false: int = 0
    good: int = 0

    def row(self, name: str, fault: Fault | None, outcomes: list[Outcome]) -> list[str]:
        """Count the outcomes of one fault, or of one good run; return their row of the table."""
        hits = [bool(fault and set(fault.checks) & set(outcome.warnings)) for outcome in outcomes]
        allowed = {*fault.checks, *fault.consequences} if fault else set[str]()
        false = [check for outcome in outcomes for check in outcome.warnings if check not in allowed]
        self.found += sum(hits)
        self.missed += len(hits) - sum(hits) if fault else 0
        self.false += len(false)
        self.good += 0 if fault else len(outcomes)
        share = f"{sum(hits)} of {len(hits)}" if fault else ""
        about, meant = (fault.about, ", ".join(fault.checks)) if fault else ("good", "")
        return [name, about, meant, share, ", ".join(sorted(set(false))) or "none"]

    @property
    def figures(self) -> str:
        """Recall and precision."""
        recall = self.found / max(1, self.found + self.missed)
        precision = self.found / max(1, self.found + self.false)
        return f"recall {recall:.3f}, precision {precision:.3f}"


def main() -> None:
    """Train, examine, print and write."""
    given = arguments()
    torch.set_num_threads(1)
    say_where()
    runs: dict[str, tuple[Fault | None, list[Outcome]]] = {}
    for name, fault, seed, outcome in results(given):
        runs.setdefault(name, (fault, []))[1].append(outcome)
        warnings = ", ".join(outcome.warnings) or "no warning"
        print(f"{name}, seed {seed}: {warnings}  ({outcome.seconds[0]:.1f} s)", flush=True)
        if given.verbose:
            print("".join(f"    {check}: {sentence}\n" for check, sentence in outcome.warnings.items()), end="")
    tally = Tally()
    rows = [tally.row(name, fault, outcomes) for name, (fault, outcomes) in runs.items()]
    columns = ["run", "fault", "checks", "found", "false warnings"]
    print_table("planted faults and good runs", columns, rows)
    note = (
        f"{tally.figures}: {tally.found} of {tally.found + tally.missed} faults found, {tally.false} false warnings, "
        f"{tally.good} good runs."
    )
    print(note)
    if given.write:
        write_table(given.write, "health: benchmarks/health.py", columns, rows, note)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--only", nargs="*", choices=[*HEALTHY, *FAULTS], default=None, metavar="FAULT")
    options.add_argument("--recipes", nargs="*", default=list(GOOD), metavar="RECIPE", help="good recipes")
    options.add_argument("--seeds", type=int, default=len(SEEDS))
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--change", nargs="*", default=[], metavar="PATH=VALUE", help="changes of the small runs")
    options.add_argument("--verbose", action="store_true", help="also print the sentences")
    options.add_argument("--write", type=Path, help="Markdown file whose table is replaced")
    given = options.parse_args()
    if given.smoke:
        given.only, given.recipes, given.seeds = ["text", "one bad batch", "leaking test rows"], [], 1
    return given


if __name__ == "__main__":
    main()
