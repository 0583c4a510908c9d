"""Command ``qkv compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared.options import SpecOption, SpecOptions
from qkv.cli.shared.runs import Json
from qkv.spec.recipes.comparison import Comparison, entry_of
from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.comparison.ranking import Ranking
    from qkv.comparison.scaling import Scaling

EXAMPLES = """\
qkv compare small.yaml attention 'gru: blocks.*.mixer=gru'
qkv compare small.yaml pre 'post: blocks.order=post' --equal flops --seeds 5
qkv compare fashion_mnist_vit vit 'wide: model.width=256' --equal time training.minutes=9
qkv compare small.yaml attention --scale 4 --fit
qkv compare mixers.yaml               a file with recipe, entries and settings
"""


_Recipe = Annotated[
    str, typer.Argument(metavar="RECIPE|FILE", help="A recipe (file or name), or the file of a comparison.")
]
_Entries = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ENTRY|PATH=VALUE",
        help="Entries such as 'gru: blocks.*.mixer=gru'; a name alone: the recipe itself. "
        "Changes without a name apply to all entries.",
    ),
]
_Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder of the runs; default: runs/compare- and the name.")
]
_Jobs = Annotated[
    int | None, typer.Option(metavar="N", help="Number of runs at once, each in its own process; default: one here.")
]
_Ray = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Ray cluster that executes the runs; 'local' starts one here.")
]
_Threads = Annotated[int, typer.Option(metavar="N", help="Cores of each run on the Ray cluster.")]


def _seeds(count: int) -> list[int]:
    if count < 1:
        raise UserError(f"--seeds: {count} given, but a comparison needs at least one seed")
    return list(range(1, count + 1))


def _rates(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--rates: {text!r} given, but it should be a list of numbers such as 0.5,1,2") from None


def _knobs(texts: list[str]) -> dict[str, str]:
    knobs: dict[str, str] = {}
    for text in texts:
        name, colon, path = text.partition(":")
        if not colon or not path.strip():
            sentence = "but it is the name of an entry and a path, such as gru:model.width"
            raise UserError(f"--knob: {text!r} given, {sentence}")
        knobs[name.strip()] = path.strip()
    return knobs


_SETTINGS = SpecOptions(
    Comparison,
    {
        "equal": SpecOption("parameters|flops|steps|time", "Budget; default: parameters."),
        "seeds": SpecOption("N", "Number of seeds, 1 to N; default: 3.", type=int, read=_seeds),
        "rates": SpecOption("F,F,…", "Factors of the learning rate to try; default: 0.5,1,2.", type=str, read=_rates),
        "baseline": "NAME",
        "metric": SpecOption(help="Metric to compare, such as accuracy; default: the task's."),
        "knobs": SpecOption(
            "NAME:PATH", "Integer setting to change for equal parameters; repeatable.", "--knob", list[str], _knobs
        ),
        "scale": SpecOption("N", "Train each entry at N sizes, each twice the one before, and 3 lengths."),
        "fit": SpecOption(
            help="With --scale: fit a power law, and check its extrapolation by a larger run.", flag="--fit"
        ),
        "quick": SpecOption(flag="--quick"),
    },
)


def compare_command(
    recipe: _Recipe,
    entries: _Entries = None,
    out: _Out = None,
    *,
    settings: Annotated[dict[str, Any], _SETTINGS],
    jobs: _Jobs = None,
    ray: _Ray = None,
    threads: _Threads = 1,
    as_json: Json = False,
) -> None:
    """Compare models over seeds, at equal parameters, training FLOPs, steps or time.

    Calling the same command again resumes an interrupted comparison.

    The learning rate of each entry is chosen on validation data. The table has means with 95 % intervals, and
    differences from the baseline with paired tests, corrected for multiple comparisons. The row of a failed entry gives
    the reason.
    """
    from qkv.api.functions import compare

    named = [text for text in entries or [] if "=" not in text.partition(":")[0]]
    if changes := [text for text in entries or [] if text not in named]:
        settings["overrides"] = changes
    _tell(compare(recipe, _entries(named) or None, out, jobs, ray, threads, **settings), as_json)


def _tell(result: Ranking | Scaling, as_json: bool) -> None:
    from qkv.report.table import print_table

    if as_json:
        typer.echo(json.dumps(result.plain(), ensure_ascii=False))
        return
    for title, columns, rows in result.tables():
        if rows:
            print_table(title, columns, rows)
            typer.echo()
    typer.echo("\n".join(result.conclusions()))
    typer.echo(f"\nreport: {result.plan.folder / result.page}")


def _entries(named: list[str]) -> dict[str, tuple[str, ...]]:
    entries = [entry_of(text) for text in named]
    names = [name for name, _ in entries]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"the entry {twice!r} is given twice; give each entry a different name")
    return dict(entries)
