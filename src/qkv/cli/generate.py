"""``qkv generate``."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from qkv.cli.runs import Copy, run_or_published
from qkv.spec.errors import SpecError, UserError, nearest
from qkv.spec.generation import Generation, Measure

if TYPE_CHECKING:
    from qkv.training.run import Run

EXAMPLES = """\
qkv generate runs/my "Once upon a time"
qkv generate runs/my "Once" --temperature 0.7 --top-p 0.9 --num-samples 3
qkv generate runs/my "Q: " --stop "Q:" --seed 1
qkv generate runs/my "Once upon" --num-beams 4 --num-return 3
qkv generate runs/my "The door was" --choose " open" --choose " closed"
qkv generate my-checkpoint --ids "464 2068 7586"
echo "Once upon" | qkv generate runs/my -
"""


def generate_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, made by 'qkv train'.")],
    prompt: Annotated[str, typer.Argument(metavar="[PROMPT]", help="The text to go on from; '-' reads it from standard input.")] = "",
    max_new_tokens: Annotated[int | None, typer.Option(metavar="N", help="Most tokens to add; 0 prints the prompt alone.")] = None,
    temperature: Annotated[float | None, typer.Option(metavar="T", help="0 takes the most probable token; higher is more random.")] = None,
    top_k: Annotated[int | None, typer.Option(metavar="K", help="Draw from the K most probable tokens only.")] = None,
    top_p: Annotated[float | None, typer.Option(metavar="P", help="Draw from the fewest tokens that hold probability P.")] = None,
    min_p: Annotated[float | None, typer.Option(metavar="P", help="Drop tokens less probable than P times the best one.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(metavar="R", help="Above 1, tokens already there get rarer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End before this text; may be given several times.")] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The same seed gives the same text; default: a new one.")] = None,
    overflow: Annotated[str | None, typer.Option(metavar="slide|refuse", help="Past the context: forget the oldest, or refuse.")] = None,
    num_samples: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="How many texts.")] = 1,
    num_beams: Annotated[int | None, typer.Option(metavar="K", help="Above 1: search for the most probable text, draw nothing.")] = None,
    num_return: Annotated[int | None, typer.Option(metavar="N", help="How many of the best texts of a search.")] = None,
    length_penalty: Annotated[float | None, typer.Option(metavar="A", help="Rank texts by log probability / length ** A.")] = None,
    early_stopping: Annotated[bool | None, typer.Option(help="End a search as soon as K texts have ended.")] = None,
    choose: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Rate this text as what follows; give several.")] = None,
    choose_by: Annotated[str | None, typer.Option(metavar="sum|token|character", help="Log probability of all, or the mean.")] = None,
    ids: Annotated[str | None, typer.Option(metavar="'N N …'", help="Go on from these ids and print ids; needs no tokenizer.")] = None,
    special: Annotated[bool, typer.Option("--special", help="Read special tokens that the prompt spells; default: plain text.")] = False,
    stream: Annotated[bool, typer.Option(help="Print each piece as soon as it is certain.")] = True,
    copy: Copy = False,
) -> None:
    """Generate text. Options that are not given are taken from the recipe's 'sample'."""
    chosen = {name: value for name, value in locals().items() if name in Generation.model_fields and value is not None}
    # Before torch is imported, which takes longer than all that can be wrong here.
    _checked(Generation(), chosen)
    _check_choice(chosen, choose, choose_by, num_samples)
    folder = run_or_published(run)
    from qkv.training.run import load

    if ids is not None:
        _check_ids(prompt, special, choose, num_samples)
        _print_ids(load(folder, copy=copy), ids, {**chosen, "seed": seed})
    elif choose:
        _print_choice(_reading(load(folder, copy=copy), special), _prompt(prompt), choose, choose_by or "sum")
    else:
        _write(_reading(load(folder, copy=copy), special), _prompt(prompt), {**chosen, "seed": seed}, num_samples, stream)


def _write(run: Run, prompt: str, options: dict[str, Any], count: int, stream: bool) -> None:
    """Print ``count`` texts after ``prompt``. Raises UserError for options that do not go together."""
    generation = _checked(run.recipe.sample, options)
    _check_beams(generation, options, count)
    _note_the_context(run, prompt, generation)
    _print(run, prompt, generation, count, stream)


def _reading(run: Run, special: bool) -> Run:
    """``run``; with ``special`` its tokenizer reads the special tokens that a prompt spells."""
    return replace(run, vocabulary=replace(run.vocabulary, target=run.tokenizer.reading_special)) if special else run


def _check_ids(prompt: str, special: bool, choose: list[str] | None, num_samples: int) -> None:
    """Raise UserError for options about text beside ids."""
    beside = {"a prompt": prompt, "--special": special, "--choose": choose, "--num-samples": num_samples > 1}
    if given := [name for name, value in beside.items() if value]:
        raise UserError(f"--ids: {given[0]} does not go with it; leave one of them out")


def _print_ids(run: Run, ids: str, options: dict[str, Any]) -> None:
    """Print the given ids and those that the model generates after them."""
    from qkv.generation.ids import write_ids

    words = ids.replace(",", " ").split()
    wrong = next((word for word in words if not (word.isascii() and word.isdigit() and len(word) < 10)), None)
    if wrong is not None:
        raise UserError(f"--ids: {wrong!r} is not an id; give whole numbers, as in --ids '1 2 3'")
    before = [int(word) for word in words]
    after = write_ids(run.model, before, _checked(run.recipe.sample.changed(stop=()), options))
    typer.echo(" ".join(map(str, before + after)))


def _checked(base: Generation, options: dict[str, Any]) -> Generation:
    """``base`` with ``options`` in place. Raises UserError that names the option."""
    try:
        return base.requested(**options)
    except SpecError as error:
        first = error.problems[0]
        raise UserError(f"{_option(str(first.path[0]))}: {first.sentence}") from None


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check_choice(chosen: dict[str, Any], choose: list[str] | None, choose_by: str | None, num_samples: int) -> None:
    """Raise UserError for options about writing beside those about choosing, or the other way round."""
    if not choose:
        if choose_by is not None:
            raise UserError("--choose-by: it says how options are judged, and none is given; give them with --choose")
        return
    if choose_by not in (None, *get_args(Measure)):
        raise UserError(f"--choose-by: {choose_by!r} given; {nearest(str(choose_by), get_args(Measure))}")
    writing = [*chosen, *(["num_samples"] if num_samples > 1 else [])]
    if writing:
        raise UserError(f"{_option(writing[0])}: with --choose given texts are rated and none is written; leave it out")


def _check_beams(generation: Generation, chosen: dict[str, Any], num_samples: int) -> None:
    """Raise UserError for options about beams without beams, and for several samples of what is not drawn."""
    idle = [name for name in ("length_penalty", "early_stopping") if name in chosen]
    if generation.num_beams == 1 and idle:
        raise UserError(f"{_option(idle[0])}: it ranks beams, and there is one; ask for more with --num-beams")
    if generation.num_beams > 1 and num_samples > 1:
        raise UserError(
            "--num-samples: beam search draws nothing, so all samples would be the same; ask for the best few with --num-return"
        )


def _prompt(prompt: str) -> str:
    if prompt != "-":
        return prompt
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"the prompt on standard input is not UTF-8: byte {error.object[error.start]:#04x} at position {error.start}"
        ) from None


def _note_the_context(run: Run, prompt: str, generation: Generation) -> None:
    """Say what of a prompt is not seen, or from where on the text stands where training never was."""
    from qkv.generation.context import first_seen, learned_reach
    from qkv.generation.text import prompt_ids

    ids, limit = prompt_ids(run.tokenizer, prompt), run.model.frontend.limit
    forgotten = first_seen(len(ids), limit)
    if forgotten and generation.overflow == "slide" and generation.max_new_tokens:
        typer.echo(
            f"note: the prompt has {len(ids)} tokens and the model sees {limit} at once; the first {forgotten} are not seen", err=True
        )
    last, reach = len(ids) + generation.max_new_tokens, None if limit else learned_reach(run.model.spec)
    if reach is not None and last - 1 > reach and generation.max_new_tokens:  # the last one is not read again
        typer.echo(
            f"note: prompt and new tokens may be {last}, and the model was trained on {reach} at once; its rotary positions go on, but what it "
            f"writes past {reach} gets worse",
            err=True,
        )


def _print(run: Run, prompt: str, generation: Generation, count: int, stream: bool) -> None:
    if generation.num_return > 1:
        _print_best(run, prompt, generation)
    elif count > 1:
        _print_several(run, prompt, generation, count)
    else:
        _print_one(run, prompt, generation, stream)


def _print_one(run: Run, prompt: str, generation: Generation, stream: bool) -> None:
    from qkv.generation.text import stream_text

    pieces = stream_text(run.model, run.tokenizer, prompt, generation)
    first = next(pieces, "")  # so that nothing is printed where the prompt is refused
    for piece in (prompt, first, *([] if stream else ["".join(pieces)])):
        typer.echo(piece, nl=False)
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    typer.echo()


def _print_several(run: Run, prompt: str, generation: Generation, count: int) -> None:
    from qkv.generation.text import generate_texts

    for i, text in enumerate(generate_texts(run.model, run.tokenizer, [prompt] * count, generation), 1):
        typer.echo(f"--- {i} of {count}")
        typer.echo(prompt + text)


def _print_best(run: Run, prompt: str, generation: Generation) -> None:
    from qkv.generation.text import best_texts

    (found,) = best_texts(run.model, run.tokenizer, [prompt], generation)
    for i, best in enumerate(found, 1):
        typer.echo(f"--- {i} of {len(found)}, score {best.score:.4f}, log probability {best.log_probability:.4f}")
        typer.echo(prompt + best.text)


def _print_choice(run: Run, prompt: str, options: list[str], by: str) -> None:
    from qkv.generation.score import score_texts
    from qkv.report.table import print_table

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        choices = score_texts(run.model, run.tokenizer, prompt, options, by)  # type: ignore[arg-type]
    for note in notes:
        typer.echo(f"note: {note.message}", err=True)
    rows = [(repr(c.text), f"{c.probability:.1%}", f"{c.log_probability:.4f}", c.tokens, f"{c.score:.4f}") for c in choices]
    print_table("", ["option", "probability", "log p", "tokens", f"score by {by}"], rows)
