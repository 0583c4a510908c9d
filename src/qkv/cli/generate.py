"""``qkv generate``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.runs import run_folder
from qkv.spec.errors import SpecError, UserError
from qkv.spec.generation import Generation

if TYPE_CHECKING:
    from qkv.training.run import Run

EXAMPLES = """\
qkv generate runs/my "Once upon a time"
qkv generate runs/my "Once" --temperature 0.7 --top-p 0.9 --num-samples 3
qkv generate runs/my "Q: " --stop "Q:" --seed 1
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
    num_samples: Annotated[int, typer.Option(metavar="N", min=1, help="How many texts.")] = 1,
    stream: Annotated[bool, typer.Option(help="Print each piece as soon as it is certain.")] = True,
) -> None:
    """Let a trained model go on writing. What is not given is taken from the recipe's 'sample'."""
    given: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "stop": stop,
        "overflow": overflow,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    # Before torch is imported, which takes longer than all that can be wrong here.
    _checked(Generation(), {**chosen, "seed": seed})
    folder = run_folder(run)
    from qkv.training.run import load

    text = _prompt(prompt)
    loaded = load(folder)
    generation = _checked(loaded.recipe.sample, {**chosen, "seed": seed})
    _note_what_is_forgotten(loaded, text, generation)
    if num_samples > 1:
        _print_several(loaded, text, generation, num_samples)
    else:
        _print_one(loaded, text, generation, stream)


def _checked(base: Generation, options: dict[str, Any]) -> Generation:
    """``base`` with ``options`` in place. Raises UserError that names the option."""
    try:
        return base.changed(**options)
    except SpecError as error:
        first = error.problems[0]
        raise UserError(f"--{str(first.path[0]).replace('_', '-')}: {first.sentence}") from None


def _prompt(prompt: str) -> str:
    if prompt != "-":
        return prompt
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"the prompt on standard input is not UTF-8: byte {error.object[error.start]:#04x} at position {error.start}"
        ) from None


def _note_what_is_forgotten(run: Run, prompt: str, generation: Generation) -> None:
    from qkv.generation.context import first_seen
    from qkv.generation.text import prompt_ids

    ids, limit = prompt_ids(run.tokenizer, prompt), run.model.frontend.limit
    forgotten = first_seen(len(ids), limit)
    if forgotten and generation.overflow == "slide" and generation.max_new_tokens:
        typer.echo(
            f"note: the prompt has {len(ids)} tokens and the model sees {limit} at once; the first {forgotten} are not seen", err=True
        )


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
