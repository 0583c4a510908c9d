"""Command ``qkv generate``."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

import typer

from qkv.cli.shared.decoding import (
    ConstraintOptions,
    DecodingSettings,
    SpeculationOptions,
    decoding,
    decoding_settings,
)
from qkv.cli.shared.inputs import text_of_input
from qkv.cli.shared.options import flag_of
from qkv.cli.shared.runs import Copy, ModelFolder, load_run, output_file, run_folder
from qkv.cli.shared.sampling import GENERATION
from qkv.spec.base import LARGEST
from qkv.spec.generation import Generation, Measure
from qkv.system.errors import UserError, nearest

if TYPE_CHECKING:
    from qkv.runs.inference.generator import Generator
    from qkv.runs.run import Run

EXAMPLES = """\
qkv generate runs/my "Once upon a time"
qkv generate runs/my "Once" --temperature 0.7 --top-p 0.9 --num-samples 3
qkv generate runs/my "Q: " --stop "Q:" --seed 1
qkv generate runs/my "Once upon" --num-beams 4 --num-return 3
qkv generate runs/my "The door was" --choose " open" --choose " closed"
qkv generate runs/images --image images.png --num-samples 16
qkv generate my-checkpoint --ids "464 2068 7586"
qkv generate SmolLM2-135M-Instruct.gguf "Once upon a time"
qkv generate runs/my "Once upon" --lookup 8
qkv generate runs/large "Once upon" --draft runs/small
qkv generate runs/my "Date: " --regex "[0-9]{4}-[0-9]{2}-[0-9]{2}"
qkv generate runs/my "" --json-schema person.json
echo "Once upon" | qkv generate runs/my -
"""

_Prompt = Annotated[str, typer.Argument(metavar="[PROMPT]", help="Text to continue; '-' reads it from standard input.")]
_NumSamples = Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="Number of texts or images to sample.")]
_Ids = Annotated[
    str | None, typer.Option(metavar="'N N …'", help="Continue these token ids and print ids; needs no tokenizer.")
]
_Special = Annotated[
    bool, typer.Option("--special", help="Parse special tokens in the prompt; default: as plain text.")
]

_PAUSE = 0.04
"""Minimum seconds between two pieces of text on the screen: whatever shows them takes time from the model."""


class _Choices(NamedTuple):
    """Options of texts to choose from."""

    choose: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Score this text as the continuation; give several.")
    ] = None
    choose_by: Annotated[
        str | None,
        typer.Option(metavar="sum|token|character", help="Score for --choose: log probability, total or mean."),
    ] = None


class _Images(NamedTuple):
    """Options of images."""

    image: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Generate images, and write them to this PNG file.")
    ] = None
    label: Annotated[
        str | None, typer.Option(metavar="LABEL", help="Label of the images; default: all labels in turn.")
    ] = None


def generate_command(
    run: ModelFolder,
    prompt: _Prompt = "",
    *,
    options: Annotated[dict[str, Any], GENERATION],
    num_samples: _NumSamples = 1,
    choices: _Choices,
    ids: _Ids = None,
    speculation: SpeculationOptions,
    constraint: ConstraintOptions,
    special: _Special = False,
    images: _Images,
    stream: Annotated[bool, typer.Option(help="Print text while it is generated.")] = True,
    copy: Copy = False,
) -> None:
    """Generate text, or images. Defaults of the options come from the recipe's 'sample' section."""
    with GENERATION.errors():
        Generation(max_new_tokens=LARGEST).requested(**options)  # before the slow import of torch
    _check_choices(choices, options, num_samples)
    flags = {"--image": images.image is not None, "--choose": bool(choices.choose), "--ids": ids is not None}
    settings = decoding_settings(speculation, constraint, copy, flags)
    if images.image is not None or images.label is not None:
        texts = {"a prompt": prompt, "--ids": ids, "--choose": choices.choose, "--special": special}
        _write_images(run, images, options, num_samples, texts)
    elif ids is not None:
        _check_ids(prompt, special, choices, num_samples)
        _print_ids(load_run(run, copy), ids, options, settings)
    elif choices.choose:
        _print_choice(_generator(load_run(run, copy), special), _prompt(prompt), choices)
    else:
        loaded = load_run(run, copy)
        generator = _generator(loaded, special)
        generation = _settings(generator, options, settings, num_samples)
        text = _prompt(prompt)
        _note_the_context(generator, text, generation)
        with decoding(settings, loaded, generator.tokenizer) as how:
            _print(generator, text, generation, num_samples, stream, how)


def _generator(run: Run, special: bool) -> Generator:
    from qkv.runs.inference.generator import generator_of

    return generator_of(run, special=special)


def _settings(
    generator: Generator, options: dict[str, Any], settings: DecodingSettings, num_samples: int
) -> Generation:
    """Return the settings of a text. Raises ``UserError`` for options that do not go together."""
    with GENERATION.errors():
        generation = generator.settings(options, stops=settings.constraint is None)
    _check_beams(generation, options, num_samples)
    return generation


def _write_images(folder: Path, images: _Images, options: dict[str, Any], count: int, texts: dict[str, Any]) -> None:
    """Generate ``count`` images and write them to a file. ``texts``: options for text, by name."""
    if images.image is None:
        raise UserError("--label: it applies to images only; name their file with --image")
    flags = [name for name, value in texts.items() if value]
    flags += [flag_of(name) for name in ("max_new_tokens", "stop", "num_beams", "num_return") if name in options]
    if flags:
        raise UserError(f"--image: {flags[0]} applies to text; leave one of them out")
    path = output_file("--image", images.image)
    from qkv.api.functions import generate_images, load
    from qkv.runs.inference.images import as_png
    from qkv.runs.storage.files import clear_errors
    from qkv.system.files import write_file

    run = load(run_folder(folder))
    with GENERATION.errors():
        content = as_png(generate_images(run, count, images.label, **options))
    with clear_errors(str(path)):
        write_file(path, content)
    typer.echo(path)


def _check_ids(prompt: str, special: bool, choices: _Choices, num_samples: int) -> None:
    """Raise UserError for text options together with --ids."""
    beside = {
        "a prompt": prompt,
        "--special": special,
        "--choose": choices.choose,
        "--num-samples": num_samples > 1,
    }
    if flags := [name for name, value in beside.items() if value]:
        raise UserError(f"--ids: {flags[0]} cannot be combined with it; leave one of them out")


def _print_ids(run: Run, ids: str, options: dict[str, Any], settings: DecodingSettings) -> None:
    """Print the given ids followed by the generated ones."""
    from qkv.api.functions import generate

    words = ids.replace(",", " ").split()
    wrong = next((word for word in words if not (word.isascii() and word.isdigit() and len(word) < 10)), None)
    if wrong is not None:
        raise UserError(f"--ids: {wrong!r} is not an id; give whole numbers, as in --ids '1 2 3'")
    before = [int(word) for word in words]
    with decoding(settings, run, run.tokenizer) as how, GENERATION.errors():
        after = generate(run, ids=before, **how, **options)
    typer.echo(" ".join(map(str, before + after)))


def _check_choices(choices: _Choices, options: dict[str, Any], num_samples: int) -> None:
    """Raise UserError for generation options together with --choose, or --choose-by without it."""
    by = choices.choose_by
    if not choices.choose:
        if by is not None:
            raise UserError(
                "--choose-by: it sets how --choose texts are scored, and there are none; give them with --choose"
            )
        return
    if by not in (None, *get_args(Measure)):
        raise UserError(f"--choose-by: {by!r} given; {nearest(str(by), get_args(Measure))}")
    writing = [*map(GENERATION.flag, options), *(["--num-samples"] if num_samples > 1 else [])]
    if writing:
        raise UserError(f"{writing[0]}: --choose scores given texts and generates none; leave this option out")


def _check_beams(generation: Generation, options: dict[str, Any], num_samples: int) -> None:
    """Raise UserError for beam options without beams, and for several samples of a beam search."""
    idle = [name for name in ("length_penalty", "early_stopping") if name in options]
    if generation.num_beams == 1 and idle:
        raise UserError(f"{flag_of(idle[0])}: it needs beam search; set --num-beams above 1")
    if generation.num_beams > 1 and num_samples > 1:
        raise UserError(
            "--num-samples: beam search is deterministic, so all samples would be equal; "
            "use --num-return for the N best texts"
        )


def _prompt(prompt: str) -> str:
    return prompt if prompt != "-" else text_of_input("the prompt on standard input").removesuffix("\n")


def _note_the_context(generator: Generator, prompt: str, generation: Generation) -> None:
    """Print a note if the prompt exceeds the context length, or if prompt and new tokens exceed the training length."""
    from qkv.generation.context import first_seen, learned_reach
    from qkv.generation.text import prompt_ids

    ids, limit = prompt_ids(generator.tokenizer, prompt), generator.model.frontend.limit
    forgotten = first_seen(len(ids), limit)
    if forgotten and generation.overflow == "slide" and generation.max_new_tokens:
        typer.echo(
            f"note: the prompt has {len(ids)} tokens and the context length is {limit}; "
            f"the first {forgotten} are ignored",
            err=True,
        )
    last, reach = len(ids) + generation.max_new_tokens, None if limit else learned_reach(generator.model.spec)
    if reach is not None and last - 1 > reach and generation.max_new_tokens:  # the last token is never an input
        typer.echo(
            f"note: prompt and new tokens may reach {last} tokens, but the model was trained on {reach}; "
            f"its RoPE accepts more, but the text gets worse beyond {reach} tokens",
            err=True,
        )


def _print(
    generator: Generator, prompt: str, generation: Generation, count: int, stream: bool, how: dict[str, Any]
) -> None:
    if generation.num_return > 1 and not how:
        _print_best(generator, prompt, generation)
    elif count > 1:
        _print_several(generator, prompt, generation, count, how)
    else:
        _print_one(generator, prompt, generation, stream, how)


def _print_one(generator: Generator, prompt: str, generation: Generation, stream: bool, how: dict[str, Any]) -> None:
    from qkv.generation.text import stream_text
    from qkv.models.fast.frozen_weights import unchanged

    pieces = stream_text(generator.model, generator.tokenizer, prompt, generation, **how)
    with unchanged():
        first = next(pieces, "")  # raise for a refused prompt before anything is printed
        for piece in (prompt, first, *([] if stream else ["".join(pieces)])):
            typer.echo(piece, nl=False)
        flushed = 0.0
        for piece in pieces:
            sys.stdout.write(piece)
            if time.monotonic() - flushed >= _PAUSE:
                sys.stdout.flush()
                flushed = time.monotonic()
    typer.echo()


def _print_several(generator: Generator, prompt: str, generation: Generation, count: int, how: dict[str, Any]) -> None:
    from qkv.generation.text import generate_texts

    texts = generate_texts(generator.model, generator.tokenizer, [prompt] * count, generation, **how)
    for i, text in enumerate(texts, 1):
        typer.echo(f"--- {i} of {count}")
        typer.echo(prompt + text)


def _print_best(generator: Generator, prompt: str, generation: Generation) -> None:
    from qkv.generation.text import best_texts

    (texts,) = best_texts(generator.model, generator.tokenizer, [prompt], generation)
    for i, best in enumerate(texts, 1):
        typer.echo(f"--- {i} of {len(texts)}, score {best.score:.4f}, log probability {best.log_probability:.4f}")
        typer.echo(prompt + best.text)


def _print_choice(generator: Generator, prompt: str, choices: _Choices) -> None:
    from qkv.generation.decode.score import score_texts
    from qkv.report.table import print_table

    by = choices.choose_by or "sum"
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        scores = score_texts(generator.model, generator.tokenizer, prompt, choices.choose or [], by)  # type: ignore[arg-type]
    for note in notes:
        typer.echo(f"note: {note.message}", err=True)
    rows = [
        (repr(c.text), f"{c.probability:.1%}", f"{c.log_probability:.4f}", c.tokens, f"{c.score:.4f}") for c in scores
    ]
    print_table("", ["option", "probability", "log p", "tokens", f"score by {by}"], rows)
