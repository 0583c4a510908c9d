"""``qkv train``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from qkv.spec.recipe import Recipe
    from qkv.training.run import Run

EXAMPLES = """\
qkv train my.txt
qkv train recipes/char_shakespeare_cpu.yaml --quick
qkv train recipe.yaml model.blocks.mixer.num_heads=8 training.steps=500 --out runs/eight
qkv train runs/eight                  go on where it stopped
"""


def train_command(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe, a run folder, a text file, or a known data set's name.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[PATH=VALUE]...", help="Changes, such as training.steps=500.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run folder; default: runs/ and the recipe's name.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The recipe's own short form.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write event files for TensorBoard.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Set a run that is already in the folder aside, and begin anew.")] = False,
) -> None:
    """Train a model. A run that is already in the folder goes on from where it stopped.

    Of a text file alone, tokenizer, size and length of training are chosen to fit the text and this machine.
    """
    from qkv.library import find_recipe, is_text

    changes = [*(overrides or []), *(["training.tensorboard=true"] if tensorboard else [])]
    chosen, folder = find_recipe(recipe, changes, quick, out, resume=not fresh)
    if fresh:
        _set_aside(folder)
    run_and_tell(chosen, folder, chosen.description if is_text(recipe) else "")


def run_and_tell(recipe: Recipe, folder: Path, note: str = "") -> Run:
    """Train, and say at the end how it went and how to go on; ``note`` when a new run begins. Raises typer.Exit if it was stopped."""
    from qkv.training.events import Ended, Event, Started
    from qkv.training.loop import train
    from qkv.training.show import Show

    ended: list[Ended] = []

    def tell(event: Event) -> None:
        if isinstance(event, Ended):
            ended.append(event)
        if isinstance(event, Started) and not event.step and note:
            typer.echo(note, err=True)
        show(event)

    with Show() as show:
        run = train(recipe, folder, on_event=tell)
    if ended and ended[-1].status == "stopped":
        typer.echo(ended[-1].message, err=True)
        raise typer.Exit(130)
    _tell(run)
    return run


def _set_aside(folder: Path) -> None:
    from qkv.training.setup import locked

    if not (folder / "spec.yaml").exists():
        return
    aside = next(path for i in range(1, 10_000) if not (path := folder.with_name(f"{folder.name}.{i}")).exists())
    with locked(folder):  # another process may be training in it
        folder.rename(aside)
    typer.echo(f"the run that was in {folder} is now in {aside}", err=True)


def _tell(run: Run) -> None:
    from qkv.report.figures import duration
    from qkv.report.table import print_table

    trained = [row for row in run.metrics if row.get("loss") is not None]
    bests = [row for row in run.metrics if row.get("step") == run.step and "val_loss" in row]
    best: dict[str, Any] = bests[-1] if bests else {}
    rows: list[tuple[str, object]] = [
        ("parameters", sum(p.numel() for p in run.model.parameters())),
        ("steps", max((row["step"] for row in trained), default=0)),
        ("training time", duration(max((row["time"] for row in trained), default=0.0))),
        ("best step", run.step),
        *((name.removeprefix("val_").replace("_", " "), value) for name, value in best.items() if name.startswith("val_")),
    ]
    print_table(str(run.folder), ["figure", "value"], [row for row in rows if row[1] is not None])
    typer.echo(f'\nreport: {run.folder / "report.html"}\nwrite:  qkv generate {shlex.quote(str(run.folder))} "…"')
