"""Command ``qkv train``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from qkv.choosing.verbs import VERBS
from qkv.cli.shared.columns import column_options
from qkv.cli.shared.train_help import Command as Command
from qkv.cli.shared.verbs import FINETUNE, TableOptions, refuse_without_verb, table_of
from qkv.parallel.meeting import joined, rank_of_process
from qkv.spec.extension.imports import imports_given
from qkv.system.errors import UserError
from qkv.system.world import ALONE

if TYPE_CHECKING:
    from qkv.runs.run import Run

EXAMPLES = """\
qkv train my.txt
qkv train my.txt --minutes 2
qkv train char_shakespeare_cpu --quick
qkv train recipe.yaml model.blocks.mixer.num_heads=8 training.steps=500 --out runs/eight
qkv train runs/eight                  resume a run
qkv train recipe.yaml --nproc 4       in four processes
qkv train classify --data mine.csv --text review --label stars
qkv train classify --data photos/
qkv train multilabel --data mine.csv --text summary --labels genres
qkv train regress --data mine.csv --text review --value price
qkv train transcribe --data clips.csv
qkv train translate --source a.txt --target b.txt
qkv train forecast --data sales.csv --time date --value amount --horizon 14
qkv train edges --data edges.csv
qkv train summarize --data mine.jsonl --text article --summary abstract
qkv train tag --data mine.conll
qkv train answer --data squad.json
qkv train caption --data photos.csv --image photo --caption description
qkv train match --data photos.csv --image photo --text description
qkv train compress --data clips.csv --out runs/codec
qkv train speak --data clips.csv --codec runs/codec
qkv train chat --data talks.jsonl --from SmolLM2-135M-Instruct.gguf
qkv train prefer --data pairs.jsonl --from runs/talks
qkv train finetune --from bert-base-uncased --data mine.csv
qkv train classify --from runs/pretrained --data mine.csv --adapt "lora(16)"
"""
_FIRST = f"A recipe (file or name), run folder, text file or data set name; or {', '.join((*VERBS, FINETUNE))}."

_Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[PATH=VALUE]...", help="Changes, such as training.steps=500.")
]
_Out = Annotated[Path | None, typer.Option("--out", "-o", help="The run folder; default: runs/ and the recipe's name.")]
_Minutes = Annotated[
    float | None, typer.Option(metavar="N", help="Time budget of the whole run; default: the recipe's.")
]
_Fresh = Annotated[bool, typer.Option("--fresh", help="Move an existing run in the folder aside and start again.")]


class ProcessOptions(NamedTuple):
    """Options of the processes that train together."""

    nproc: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of processes on this machine that share the training.")
    ] = 1
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="End all processes if one does not answer for that long.")
    ] = 600.0


more_options = column_options
"""Options beside the parameters of the command: one for each column that a task or a registered processor reads."""


def train_command(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help=_FIRST)],
    overrides: _Overrides = None,
    out: _Out = None,
    minutes: _Minutes = None,
    quick: Annotated[bool, typer.Option("--quick", help="Use the recipe's short form.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write event files for TensorBoard.")] = False,
    fresh: _Fresh = False,
    *,
    invocation: typer.Context,
    processes: ProcessOptions,
    table: TableOptions,
    **columns: str | None,
) -> None:
    """Train a model. An existing run in the folder is resumed.

    For a text file, the tokenizer, model size and length of training are chosen to fit the text and this machine. The
    same holds for a table of examples after a verb: classify, multilabel, regress, transcribe, tag, answer, translate,
    forecast, edges, summarize, caption, match, compress, speak, chat, prefer, or finetune, which infers the task from
    the data. 'qkv train classify --help' lists options of a verb.
    """
    if processes.nproc > 1 and rank_of_process()[1] == 1:
        return _launch(invocation.obj, processes.nproc)
    changes = _changes(overrides or [], tensorboard, minutes)
    options = {"overrides": changes, "quick": quick, "out": out, "resume": not fresh}
    with joined(processes.timeout) as world:
        return _train(recipe, {**table._asdict(), **columns}, {**options, "world": world})


def _launch(arguments: list[str], count: int) -> None:
    """Run the command ``arguments`` in ``count`` processes. Raises ``typer.Exit`` with their exit code."""
    from qkv.parallel.launch import launch

    code, sentence = launch(arguments, count)
    if sentence:
        typer.echo(f"qkv: {sentence}", err=True)
    raise typer.Exit(code)


def _train(recipe: str, table: dict[str, Any], options: dict[str, Any]) -> None:
    """Train ``recipe``, or the verb of that name, on the data of ``table``; ``options``: arguments of ``qkv.train``."""
    from qkv.api.recipes import is_text

    is_data = recipe in (*VERBS, FINETUNE) or is_text(recipe)
    if is_data and options["world"].first:  # a recipe is read quickly, and its errors are shown without this line
        say_start(table["data"] or recipe)
    source, arguments = _table(recipe, table, options["overrides"])
    train_and_tell(source, recipe, is_data, **arguments, **options)


def _changes(overrides: list[str], tensorboard: bool, minutes: float | None) -> list[str]:
    """Return the overrides of the command line, including the options --tensorboard and --minutes as overrides."""
    options = {"training.tensorboard": "true" if tensorboard else None, "training.minutes": minutes}
    return [*overrides, *(f"{path}={value}" for path, value in options.items() if value is not None)]


def _table(recipe: str, options: dict[str, Any], changes: list[str]) -> tuple[str, dict[str, Any]]:
    """Return source and arguments of ``qkv.train`` for a recipe or text file, or for a verb with its options.

    Raises ``UserError`` for a data file given without --data.
    """
    if recipe not in VERBS and recipe != FINETUNE:
        refuse_without_verb(recipe, options)
        return recipe, {}
    bare = next((change for change in changes if "=" not in change), None)
    if bare is not None:
        raise UserError(
            f"{bare!r} is not a change such as training.steps=500; if it is the data: qkv train {recipe} --data {bare}"
        )
    return table_of(recipe, options)


def say_start(source: str) -> None:
    """Print a line before slow work begins: imports, reading of ``source``, selection of a model for this machine.

    Nothing is printed if ``source`` is neither a file or folder nor a known name, because an error message follows.
    """
    from qkv.data.corpora.named import NAMES
    from qkv.data.records.named import TABLES
    from qkv.spec.files.shipped import shipped

    if Path(source).expanduser().exists() or source in (*NAMES, *TABLES, *shipped()):
        typer.echo(f"reading {source} and preparing the training", err=True)


def train_and_tell(source: Any, name: str, is_data: bool = False, **arguments: Any) -> Run:
    """Train with progress on the terminal, then print the results and the next command.

    ``source`` and ``arguments``: arguments of ``qkv.train``. ``name``: name of the source, printed before slow work
    begins. ``is_data``: the source is data, and the caller has printed its name; the description of the recipe chosen
    for it is printed instead, when training starts.
    """
    from qkv.api.functions import train
    from qkv.training.watch.events import Event, Prepared, Started
    from qkv.training.watch.show import Show

    if not arguments.get("world", ALONE).first:
        return train(source, on_event=lambda event: None, **arguments)
    notes = list[str]()

    def tell(event: Event) -> None:
        if isinstance(event, Prepared):
            if is_data:
                notes.append(event.recipe.description)
            else:
                say_start(name)
            if not arguments.get("resume", True):
                _set_aside(event.folder)
        if isinstance(event, Started) and not event.step and notes:
            typer.echo(notes.pop(), err=True)
        show(event)

    with Show() as show:
        run = train(source, on_event=tell, **arguments)
    _tell(run)
    return run


def _set_aside(folder: Path) -> None:
    from qkv.runs.storage.folder import locked

    if not (folder / "spec.yaml").exists() and not (folder / "heats").exists():
        return
    aside = next(path for i in range(1, 10_000) if not (path := folder.with_name(f"{folder.name}.{i}")).exists())
    with locked(folder):  # another process may be training in it
        folder.rename(aside)
    typer.echo(f"the previous run in {folder} was moved to {aside}", err=True)


def _tell(run: Run) -> None:
    from qkv.cli.shared.advice import advice
    from qkv.report.evaluation import words
    from qkv.report.figures import duration
    from qkv.report.table import print_table
    from qkv.runs.metrics import times
    from qkv.tasks.registry import task_of_recipe
    from qkv.training.usage import usage

    trained = [row for row in run.metrics if row.get("loss") is not None]
    bests = [row for row in run.metrics if row.get("step") == run.step and "val_loss" in row]
    best: dict[str, Any] = bests[-1] if bests and not run.evaluation else {}
    rows: list[tuple[str, object]] = [
        ("parameters", run.num_parameters),
        ("steps", max((row["step"] for row in trained), default=0)),
        ("training time", duration(max((row["time"] for row in trained), default=0.0))),
        *times(run.metrics),
        ("best step", run.step),
        *((words(name.removeprefix("val_")), value) for name, value in best.items() if name.startswith("val_")),
    ]
    print_table(str(run.folder), ["quantity", "value"], [row for row in rows if row[1] is not None])
    _tell_evaluation(run)
    next_step = advice(run)
    if next_step:
        typer.echo(f"\n{next_step}")
    _, command = usage(task_of_recipe(run.recipe), run.folder, "…")
    verb = command.split()[1]
    use = f"{_DOES.get(verb, verb)}: {command}{imports_given()}"
    typer.echo(f"\nreport: {run.folder / 'report.html'}\n{use}")


_DOES = {"train": "train on"}
"""Word before a command that uses a run, if it is not the name of the command."""


def _tell_evaluation(run: Run) -> None:
    from qkv.report.evaluation import rows
    from qkv.report.table import print_table

    if not run.evaluation:
        return
    splits = run.evaluation["splits"]
    typer.echo()
    print_table(f"evaluation at step {run.evaluation['step']:,}", ["metric", *splits], rows(splits))
    for section in splits["validation"]["sections"] if "validation" in splits else ():
        if section["kind"] in ("heats", "contestants"):
            typer.echo()
            print_table(section["title"].lower(), section["columns"], section["rows"])
    for note in dict.fromkeys(note for evaluation in splits.values() for note in evaluation["notes"]):
        typer.echo(note)
