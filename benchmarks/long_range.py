"""Benchmark of mixers on long rows: ListOps and opinions of documents read by bytes, at equal parameters and minutes.

    QKV_DATA=folder python benchmarks/long_range.py --minutes 20 --seeds 2 --out long --write docs/long_range.md

The same classifier with another mixer in its slot, each run a process of its own, ``--jobs`` at once: a comparison of
``qkv compare`` for each task. An interrupted benchmark goes on; ``--finished`` writes the table of the runs that are
over. The best weights are chosen on the validation part; figures are those of the test part.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from long_range_data import PARTS, Parts, list_operations, opinions, write_parts
from qkv.comparison.compare import compare
from qkv.comparison.executors import Executor, Processes, Watcher
from qkv.comparison.outcome import Outcome, read_outcome
from qkv.comparison.plan import PlannedRun
from qkv.comparison.ranking import EntryResult, Ranking
from qkv.report.table import print_table
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.comparison import Comparison
from qkv.system.processor import processor_name
from side_by_side import parser, say_where, write_table


class LongTask(NamedTuple):
    """Task of long rows: ``build`` makes its parts from the arguments; ``model``: fields of the model for it;
    ``rate``: learning rate at the factor 1.
    """

    about: str
    tokenizer: str
    model: dict[str, Any]
    rate: float
    build: Callable[[argparse.Namespace], Parts]


class Contestant(NamedTuple):
    """Mixer of the race: branches of a block, and its accuracy in the Long Range Arena by task, if it is there."""

    about: str
    branches: Sequence[str]
    published: dict[str, float] = {}


TASKS = {
    "listops": LongTask(
        "ListOps",
        "word_list(vocab_size=32, min_frequency=1, lowercase=false)",
        {"head": {"kind": "classification", "pooling": "first"}},
        1e-3,
        lambda given: list_operations(given.rows, given.held_out, given.longest),
    ),
    "text": LongTask(
        "opinion, bytes",
        "bytes",
        # Means of bytes differ little between documents, and without a batch norm what they share hides it for long.
        {"head": {"kind": "classification", "pooling": "mean"}, "norm": "batch_norm"},
        3e-3,
        lambda given: opinions(Path(os.environ.get("QKV_DATA", ".")), given.rows, given.held_out, given.longest),
    ),
}
_WIDE = "feed_forward(384)"
CONTESTANTS = {
    "attention": Contestant("attention", ["attention(2, mask=full)", _WIDE], {"listops": 36.37, "text": 64.27}),
    "window": Contestant(
        "attention, 64 positions to each side",
        ["attention(2, mask=window(65))", _WIDE],
        {"listops": 15.82, "text": 52.98},
    ),
    "linear": Contestant(
        "linear attention", ["linear_attention(2, mask=full)", _WIDE], {"listops": 16.13, "text": 65.90}
    ),
    "performer": Contestant(
        "Performer, 64 features",
        ["linear_attention(2, mask=full, features=favor(64))", _WIDE],
        {"listops": 18.01, "text": 65.40},
    ),
    "linformer": Contestant(
        "Linformer, 32 keys",
        ["linformer(2, rank=32, share=keys_values)", _WIDE],
        {"listops": 35.70, "text": 53.94},
    ),
    "mixed": Contestant(
        "mixed chunk attention, chunks of 128", ["mixed_chunk_attention(mask=full, key_dim=32, chunk=128)"]
    ),
    "reformer": Contestant(
        "LSH attention (Reformer), chunks of 64",
        ["lsh_attention(2, mask=full, num_hashes=1, num_buckets=16, chunk_length=64)", _WIDE],
        {"listops": 37.27, "text": 56.10},
    ),
    "hyper": Contestant(
        "HyperAttention, blocks of 64",
        ["hyper_attention(2, mask=full, block=64, samples=64, exact_up_to=128)", _WIDE],
    ),
}
FIRST = ("attention", "window", "linear", "performer", "linformer", "mixed")
"""Contestants unless others are named."""


@dataclass(frozen=True)
class Finished:
    """Executor that trains nothing: a run that is not over has failed."""

    def outcomes(self, runs: Sequence[PlannedRun], waiting: Sequence[int], watcher: Watcher) -> dict[int, Outcome]:
        """Outcome of each waiting run."""
        return {i: Outcome(NOT_RUN) for i in waiting}


NOT_RUN = "not run"


def steps_of(name: str, given: argparse.Namespace) -> int | None:
    """Number of steps of a run of a task; None if minutes limit it."""
    found = dict(zip(given.tasks, (given.steps or [0]) * len(given.tasks), strict=False))
    return found[name] or None


def budget_of(name: str, given: argparse.Namespace) -> str:
    """Budget of a run of a task, in words."""
    steps = steps_of(name, given)
    return f"{given.minutes:g} minutes, evaluation included" if steps is None else f"{steps:,} steps"


def base_recipe(name: str, files: dict[str, Path], given: argparse.Namespace) -> Recipe:
    """Recipe that all contestants change: a bidirectional encoder."""
    task, asked = TASKS[name], steps_of(name, given)
    steps = asked or 40_000
    data = {
        "source": str(files["train"]),
        "validation": str(files["validation"]),
        "test": str(files["test"]),
        "columns": {"text": "text", "label": "label"},
        "tokenizer": task.tokenizer,
        "batching": f"token_buckets({given.tokens})",
    }
    model = {
        "width": 64,
        "num_layers": 2,
        "context_length": given.longest + 1,  # and a special token
        "frontend": {"kind": "text", "positions": "learned"},
        "blocks": [{"branches": list(CONTESTANTS["attention"].branches)}],
        **task.model,
    }
    training = {
        "steps": steps,
        "minutes": None if asked else given.minutes,
        "optimizer": {"kind": "adamw", "lr": task.rate},
        "schedule": {"kind": "cosine", "warmup": min(100, steps // 3), "final": 0.05},
        "validation": {"every": min(500, steps), "batches": 8},
    }
    return Recipe.parse({"name": name, "data": data, "task": "classification", "model": model, "training": training})


def tables(name: str, given: argparse.Namespace) -> dict[str, Path]:
    """Files of the parts of a task, built unless files of these sizes are there."""
    folder = given.out / f"{name}-data"
    made, sizes = folder / "sizes.json", json.dumps([given.rows, given.held_out, given.longest])
    if not (made.exists() and made.read_text(encoding="utf-8") == sizes):
        write_parts(TASKS[name].build(given), folder)
        made.write_text(sizes, encoding="utf-8")
    return {part: folder / f"{part}.csv" for part in PARTS}


def ranking_of(name: str, given: argparse.Namespace) -> Ranking:
    """Carry out the comparison for a task, or go on with it, or read what is over."""
    files = tables(name, given)
    comparison = Comparison.parse(
        {
            "recipe": name,
            "entries": {
                each: [f"model.blocks.0.branches={_listed(CONTESTANTS[each].branches)}"] for each in given.models
            },
            "equal": "parameters",
            "seeds": list(range(1, given.seeds + 1)),
            "rates": given.rates,
            "metric": "accuracy",
        }
    )
    executor: Executor = Finished() if given.finished else Processes(given.jobs)
    found = compare(comparison, given.out / name, executor, base_recipe(name, files, given))
    assert isinstance(found, Ranking)  # of one size
    return found


def _listed(branches: Sequence[str]) -> str:
    return f"[{', '.join(repr(each) for each in branches)}]"


TABLE = "long range: benchmarks/long_range.py"
COLUMNS = ["task", "model", "parameters", "steps", "minutes", "accuracy %", "Long Range Arena %"]
BASELINES = {"most_frequent_label": "most frequent label", "ngrams": "logistic regression over n-grams"}


def table(name: str, ranking: Ranking) -> list[list[str]]:
    """Rows of a task: its baselines, then every contestant that has finished a run."""
    outcomes = {row.name: _outcomes(row, ranking) for row in ranking.rows}
    known = [outcome.figures for found in outcomes.values() for outcome in found]
    rows = []
    for baseline, about in BASELINES.items():
        accuracy = known[0].get(f"{ranking.split}.accuracy_of_{baseline}") if known else None
        if accuracy is not None:
            rows.append([TASKS[name].about, about, "", "", "", f"{accuracy:.1f}", ""])
    return rows + [_summary(name, row, outcomes[row.name]) for row in ranking.rows if row.values]


def _outcomes(row: EntryResult, ranking: Ranking) -> list[Outcome]:
    """Outcomes of an entry's finished runs, at the rate that was chosen."""
    if row.rate is None:
        return []
    found = [read_outcome(ranking.plan.run(row.name, row.rate, seed).folder) for seed in row.values]
    return [outcome for outcome in found if outcome]


def _summary(name: str, row: EntryResult, outcomes: Sequence[Outcome]) -> list[str]:
    contestant, accuracies = CONTESTANTS[row.name], list(row.values.values())
    published = contestant.published.get(name)
    spread = f" ± {statistics.stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
    return [
        TASKS[name].about,
        contestant.about,
        f"{row.parameters:,}",
        f"{statistics.mean(outcome.counts['steps'] for outcome in outcomes):,.0f}",
        f"{(row.seconds or 0) / 60:.1f}",
        f"{statistics.mean(accuracies):.1f}{spread}",
        "" if published is None else f"{published:.2f}",
    ]


def note(rankings: dict[str, Ranking], given: argparse.Namespace) -> str:
    """Sentences below the table: settings, machine, and the runs that are missing."""
    budgets = [f"{budget_of(name, given)} ({TASKS[name].about})" for name in rankings]
    parts = f"{given.rows:,} rows for training, {given.held_out:,} for validation and as many for the test"
    rates = [f"{TASKS[name].rate:g} ({TASKS[name].about})" for name in rankings]
    factors = f", times {', '.join(f'{rate:g}' for rate in given.rates)}" if given.rates != [1.0] else ""
    missing = [
        f"{CONTESTANTS[row.name].about} ({TASKS[name].about})"
        for name, ranking in rankings.items()
        for row in ranking.rows
        if not row.values
    ]
    lines = [
        f"Seeds 1 to {given.seeds}" if given.seeds > 1 else "Seed 1",
        f"a run has {' and '.join(budgets)}; {given.jobs} at once",
        f"learning rate {' and '.join(rates)}{factors}",
        f"two layers of width 64, batches of {given.tokens:,} tokens; up to {given.longest:,} positions; {parts}",
        f"{processor_name()}; {datetime.now(UTC):%Y-%m-%d}",
    ]
    return "; ".join(lines) + "." + (f" Without a finished run: {', '.join(missing)}." if missing else "")


def arguments(line: Iterable[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    options = parser(__doc__ or "")
    options.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    options.add_argument("--models", nargs="+", choices=CONTESTANTS, default=list(FIRST))
    options.add_argument("--minutes", type=float, default=20.0, help="time budget of a run, evaluation included")
    options.add_argument(
        "--steps", type=int, nargs="+", help="steps of a run in place of minutes; one each, or for all; 0: minutes"
    )
    options.add_argument("--seeds", type=int, default=1, help="number of seeds, from 1")
    options.add_argument("--rates", type=float, nargs="+", default=[1.0], help="factors of the learning rate")
    options.add_argument("--rows", type=int, default=20_000, help="rows for training")
    options.add_argument("--held-out", type=int, default=2000, help="rows for validation, and for the test")
    options.add_argument("--longest", type=int, default=1000, help="maximum number of tokens or bytes of a row")
    options.add_argument("--tokens", type=int, default=4096, help="tokens of a batch, padding included")
    options.add_argument("--jobs", type=int, default=1, help="runs at once, each on one core")
    options.add_argument("--out", type=Path, default=Path("long_range"), help="folder of tables and runs")
    options.add_argument("--finished", action="store_true", help="train nothing: use the runs that are over")
    options.add_argument("--write", type=Path, help="Markdown page with a place for the table")
    given = options.parse_args(line)
    if given.smoke:
        given.tasks, given.models, given.steps = ["listops"], ["linear"], [4]
        given.rows, given.held_out, given.longest, given.tokens = 60, 10, 200, 2048
    return given


def main() -> None:
    """Run the benchmark, print its table, and write it into the page."""
    given = arguments()
    say_where()
    os.environ["OMP_NUM_THREADS"] = str(given.jobs)  # one thread for each run
    rankings = {name: ranking_of(name, given) for name in given.tasks}
    rows = [row for name, ranking in rankings.items() for row in table(name, ranking)]
    print_table("mixers on long rows", COLUMNS, rows)
    for name, ranking in rankings.items():
        print(f"{TASKS[name].about}: {' '.join(ranking.conclusions())}")
    print(note(rankings, given))
    if given.write:
        write_table(given.write, TABLE, COLUMNS, rows, note(rankings, given))


if __name__ == "__main__":
    main()
