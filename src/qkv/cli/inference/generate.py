"""Command ``qkv generate``."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from qkv.cli.shared.decoding import DecodingOptions, decoding, decoding_options
from qkv.cli.shared.inputs import text_of_input
from qkv.cli.shared.runs import Copy, ModelFolder, load_run, output_file, run_folder
from qkv.spec.base import LARGEST
from qkv.spec.errors import SpecError
from qkv.spec.generation import Generation, Measure
from qkv.system.errors import UserError, nearest

if TYPE_CHECKING:
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
_MaxNewTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Maximum number of new tokens; 0 prints the prompt.")
]
_Temperature = Annotated[
    float | None, typer.Option(metavar="T", help="Sampling temperature; 0 takes the most probable token.")
]
_TopK = Annotated[int | None, typer.Option(metavar="K", help="Sample only from the K most probable tokens.")]
_TopP = Annotated[
    float | None, typer.Option(metavar="P", help="Sample from the smallest set of tokens with probability P.")
]
_MinP = Annotated[
    float | None, typer.Option(metavar="P", help="Drop tokens less probable than P times the most probable.")
]
_RepetitionPenalty = Annotated[
    float | None, typer.Option(metavar="R", help="Values above 1 make repeated tokens less likely.")
]
_PresencePenalty = Annotated[
    float | None, typer.Option(metavar="P", help="Subtract P from the logits of tokens generated before.")
]
_FrequencyPenalty = Annotated[
    float | None, typer.Option(metavar="F", help="Subtract F from a token's logit for each time it was generated.")
]
_LogitBias = Annotated[
    list[str] | None, typer.Option(metavar="ID=BIAS", help="Add BIAS to the logit of token ID; repeatable.")
]
_MinTokens = Annotated[int | None, typer.Option(metavar="N", help="Minimum number of new tokens.")]
_StopTokenIds = Annotated[
    list[int] | None, typer.Option("--stop-token-id", metavar="ID", help="Stop before this token; repeatable.")
]
_Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Stop before this text; may be given several times.")
]
_Seed = Annotated[int | None, typer.Option(metavar="N", help="Random seed; default: a new one each time.")]
_Overflow = Annotated[
    str | None, typer.Option(metavar="slide|refuse", help="When the context is full: drop old tokens, or refuse.")
]
_NumSamples = Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="Number of texts or images to sample.")]
_Image = Annotated[Path | None, typer.Option(metavar="FILE", help="Generate images, and write them to this PNG file.")]
_Label = Annotated[str | None, typer.Option(metavar="LABEL", help="Label of the images; default: all labels in turn.")]
_NumBeams = Annotated[int | None, typer.Option(metavar="K", help="Number of beams; above 1: beam search, no sampling.")]
_NumReturn = Annotated[int | None, typer.Option(metavar="N", help="Number of texts that beam search returns.")]
_LengthPenalty = Annotated[float | None, typer.Option(metavar="A", help="Rank beams by log probability / length ** A.")]
_EarlyStopping = Annotated[bool | None, typer.Option(help="Stop beam search as soon as K texts are complete.")]
_Choose = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Score this text as the continuation; give several.")
]
_ChooseBy = Annotated[
    str | None, typer.Option(metavar="sum|token|character", help="Score for --choose: log probability, total or mean.")
]
_Ids = Annotated[
    str | None, typer.Option(metavar="'N N …'", help="Continue these token ids and print ids; needs no tokenizer.")
]
_LookUp = Annotated[
    int | None, typer.Option("--lookup", metavar="N", help="Propose N tokens at a time by n-gram look-up in the text.")
]
_Draft = Annotated[
    Path | None, typer.Option(metavar="RUN", help="Propose tokens by a smaller model with the same vocabulary.")
]
_DraftTokens = Annotated[
    int | None, typer.Option(metavar="N", help="Number of tokens that the draft proposes at a time; default: 4.")
]
_Regex = Annotated[
    str | None, typer.Option(metavar="EXPRESSION", help="Generate only text that matches this regular expression.")
]
_JsonSchema = Annotated[Path | None, typer.Option(metavar="FILE", help="Generate JSON that this schema allows.")]
_OpenObjects = Annotated[bool, typer.Option("--open-objects", help="Allow keys that the schema does not name.")]
_Special = Annotated[
    bool, typer.Option("--special", help="Parse special tokens in the prompt; default: as plain text.")
]


def generate_command(
    run: ModelFolder,
    prompt: _Prompt = "",
    max_new_tokens: _MaxNewTokens = None,
    temperature: _Temperature = None,
    top_k: _TopK = None,
    top_p: _TopP = None,
    min_p: _MinP = None,
    repetition_penalty: _RepetitionPenalty = None,
    presence_penalty: _PresencePenalty = None,
    frequency_penalty: _FrequencyPenalty = None,
    logit_bias: _LogitBias = None,
    min_tokens: _MinTokens = None,
    stop_token_ids: _StopTokenIds = None,
    stop: _Stop = None,
    seed: _Seed = None,
    overflow: _Overflow = None,
    num_samples: _NumSamples = 1,
    num_beams: _NumBeams = None,
    num_return: _NumReturn = None,
    length_penalty: _LengthPenalty = None,
    early_stopping: _EarlyStopping = None,
    choose: _Choose = None,
    choose_by: _ChooseBy = None,
    ids: _Ids = None,
    lookup: _LookUp = None,
    draft: _Draft = None,
    draft_tokens: _DraftTokens = None,
    regex: _Regex = None,
    json_schema: _JsonSchema = None,
    open_objects: _OpenObjects = False,
    special: _Special = False,
    image: _Image = None,
    label: _Label = None,
    stream: Annotated[bool, typer.Option(help="Print text while it is generated.")] = True,
    copy: Copy = False,
) -> None:
    """Generate text, or images. Defaults of the options come from the recipe's 'sample' section."""
    given = dict(locals())
    _generate(given, _options(given), _wanted(given))


def _wanted(given: dict[str, Any]) -> DecodingOptions:
    """Select and check the options of speculative and constrained decoding."""
    others = {
        "--image": given["image"] is not None,
        "--choose": bool(given["choose"]),
        "--ids": given["ids"] is not None,
    }
    names = ("lookup", "draft", "draft_tokens", "regex", "json_schema", "open_objects", "copy")
    chosen: dict[str, Any] = {name: given[name] for name in names}
    return decoding_options(**chosen, others=others)


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Select the options that are fields of ``Generation``, and check them before the slow import of torch."""
    chosen = {name: value for name, value in given.items() if name in Generation.model_fields and value is not None}
    if "logit_bias" in chosen:
        chosen["logit_bias"] = _biases(chosen["logit_bias"])
    _checked(Generation(max_new_tokens=LARGEST), chosen)
    _check_choice(chosen, given["choose"], given["choose_by"], given["num_samples"])
    return {**chosen, "seed": given["seed"]}


def _biases(given: list[str]) -> dict[int, float]:
    """Parse texts ``ID=BIAS`` to biases by token id. Raises ``UserError``."""
    found: dict[int, float] = {}
    for text in given:
        index, _, bias = text.partition("=")
        try:
            found[int(index)] = float(bias)
        except ValueError:
            raise UserError(f"--logit-bias: {text!r} given; allowed: ID=BIAS, such as 15=-2.5") from None
    return found


def _generate(given: dict[str, Any], options: dict[str, Any], wanted: DecodingOptions) -> None:
    """Generate images, ids or text, or choose among texts, as the options select; print or write the result."""
    run, prompt, choose, count = given["run"], given["prompt"], given["choose"], given["num_samples"]
    if given["image"] is not None or given["label"] is not None:
        texts = {"a prompt": prompt, "--ids": given["ids"], "--choose": choose, "--special": given["special"]}
        return _write_images(run, given["image"], given["label"], options, count, texts)
    if given["ids"] is not None:
        _check_ids(prompt, given["special"], choose, count)
        return _print_ids(load_run(run, given["copy"]), given["ids"], options, wanted)
    loaded = _reading(load_run(run, given["copy"]), given["special"])
    if choose:
        return _print_choice(loaded, _prompt(prompt), choose, given["choose_by"] or "sum")
    return _write(loaded, _prompt(prompt), options, count, given["stream"], wanted)


def _write(run: Run, prompt: str, options: dict[str, Any], count: int, stream: bool, wanted: DecodingOptions) -> None:
    """Generate and print ``count`` texts after ``prompt``. Raises ``UserError`` for options that do not go together."""
    from qkv.runs.inference.end_tokens import writing

    sample = writing(run)
    generation = _checked(sample.changed(stop=()) if wanted.constraint else sample, options)
    _check_beams(generation, options, count)
    _note_the_context(run, prompt, generation)
    with decoding(wanted, run, generation) as how:
        _print(run, prompt, generation, count, stream, how)


def _write_images(
    folder: Path, file: Path | None, label: str | None, options: dict[str, Any], count: int, texts: dict[str, Any]
) -> None:
    """Generate ``count`` images and write them to ``file``. ``texts``: options for text, by name."""
    if file is None:
        raise UserError("--label: it applies to images only; name their file with --image")
    given = [name for name, value in texts.items() if value]
    given += [_option(name) for name in ("max_new_tokens", "stop", "num_beams", "num_return") if name in options]
    if given:
        raise UserError(f"--image: {given[0]} applies to text; leave one of them out")
    path = output_file("--image", file)
    from qkv.api.functions import generate_images, load
    from qkv.runs.inference.images import as_png
    from qkv.runs.storage.files import clear_errors
    from qkv.system.files import write_file

    run = load(run_folder(folder))
    _checked(run.recipe.sample, options)
    content = as_png(generate_images(run, count, label, **options))
    with clear_errors(str(path)):
        write_file(path, content)
    typer.echo(path)


def _reading(run: Run, special: bool) -> Run:
    """Return ``run``; with ``special``, a copy whose tokenizer parses special tokens in the prompt."""
    return replace(run, vocabulary=replace(run.vocabulary, target=run.tokenizer.reading_special)) if special else run


def _check_ids(prompt: str, special: bool, choose: list[str] | None, num_samples: int) -> None:
    """Raise UserError for text options together with --ids."""
    beside = {"a prompt": prompt, "--special": special, "--choose": choose, "--num-samples": num_samples > 1}
    if given := [name for name, value in beside.items() if value]:
        raise UserError(f"--ids: {given[0]} cannot be combined with it; leave one of them out")


def _print_ids(run: Run, ids: str, options: dict[str, Any], wanted: DecodingOptions) -> None:
    """Print the given ids followed by the generated ones."""
    from qkv.generation.ids import write_ids

    words = ids.replace(",", " ").split()
    wrong = next((word for word in words if not (word.isascii() and word.isdigit() and len(word) < 10)), None)
    if wrong is not None:
        raise UserError(f"--ids: {wrong!r} is not an id; give whole numbers, as in --ids '1 2 3'")
    before = [int(word) for word in words]
    from qkv.runs.inference.generator import generator_of

    generation = _checked(run.recipe.sample.changed(stop=()), options)
    with decoding(wanted, run, generation) as how:
        after = write_ids(run.model, before, generation, drawn=generator_of(run).drawn, **how)
    typer.echo(" ".join(map(str, before + after)))


def _checked(base: Generation, options: dict[str, Any]) -> Generation:
    """Return ``base`` with the changes ``options``. Raises ``UserError`` that names the invalid option."""
    try:
        return base.requested(**options)
    except SpecError as error:
        first = error.problems[0]
        raise UserError(f"{_option(str(first.path[0]))}: {first.sentence}") from None


def _option(name: str) -> str:
    return "--stop-token-id" if name == "stop_token_ids" else f"--{name.replace('_', '-')}"


def _check_choice(chosen: dict[str, Any], choose: list[str] | None, choose_by: str | None, num_samples: int) -> None:
    """Raise UserError for generation options together with --choose, or --choose-by without it."""
    if not choose:
        if choose_by is not None:
            raise UserError(
                "--choose-by: it sets how --choose texts are scored, and there are none; give them with --choose"
            )
        return
    if choose_by not in (None, *get_args(Measure)):
        raise UserError(f"--choose-by: {choose_by!r} given; {nearest(str(choose_by), get_args(Measure))}")
    writing = [*chosen, *(["num_samples"] if num_samples > 1 else [])]
    if writing:
        raise UserError(f"{_option(writing[0])}: --choose scores given texts and generates none; leave this option out")


def _check_beams(generation: Generation, chosen: dict[str, Any], num_samples: int) -> None:
    """Raise UserError for beam options without beams, and for several samples of a beam search."""
    idle = [name for name in ("length_penalty", "early_stopping") if name in chosen]
    if generation.num_beams == 1 and idle:
        raise UserError(f"{_option(idle[0])}: it needs beam search; set --num-beams above 1")
    if generation.num_beams > 1 and num_samples > 1:
        raise UserError(
            "--num-samples: beam search is deterministic, so all samples would be equal; "
            "use --num-return for the N best texts"
        )


def _prompt(prompt: str) -> str:
    return prompt if prompt != "-" else text_of_input("the prompt on standard input").removesuffix("\n")


def _note_the_context(run: Run, prompt: str, generation: Generation) -> None:
    """Print a note if the prompt exceeds the context length, or if prompt and new tokens exceed the training length."""
    from qkv.generation.context import first_seen, learned_reach
    from qkv.generation.text import prompt_ids

    ids, limit = prompt_ids(run.tokenizer, prompt), run.model.frontend.limit
    forgotten = first_seen(len(ids), limit)
    if forgotten and generation.overflow == "slide" and generation.max_new_tokens:
        typer.echo(
            f"note: the prompt has {len(ids)} tokens and the context length is {limit}; "
            f"the first {forgotten} are ignored",
            err=True,
        )
    last, reach = len(ids) + generation.max_new_tokens, None if limit else learned_reach(run.model.spec)
    if reach is not None and last - 1 > reach and generation.max_new_tokens:  # the last token is never an input
        typer.echo(
            f"note: prompt and new tokens may reach {last} tokens, but the model was trained on {reach}; "
            f"its RoPE accepts more, but the text gets worse beyond {reach} tokens",
            err=True,
        )


def _print(run: Run, prompt: str, generation: Generation, count: int, stream: bool, how: dict[str, Any]) -> None:
    if generation.num_return > 1 and not how:
        _print_best(run, prompt, generation)
    elif count > 1:
        _print_several(run, prompt, generation, count, how)
    else:
        _print_one(run, prompt, generation, stream, how)


def _print_one(run: Run, prompt: str, generation: Generation, stream: bool, how: dict[str, Any]) -> None:
    from qkv.generation.text import stream_text
    from qkv.models.fast.frozen_weights import unchanged

    pieces = stream_text(run.model, run.tokenizer, prompt, generation, **how)
    with unchanged():
        first = next(pieces, "")  # raise for a refused prompt before anything is printed
        for piece in (prompt, first, *([] if stream else ["".join(pieces)])):
            typer.echo(piece, nl=False)
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
    typer.echo()


def _print_several(run: Run, prompt: str, generation: Generation, count: int, how: dict[str, Any]) -> None:
    from qkv.generation.text import generate_texts

    texts = generate_texts(run.model, run.tokenizer, [prompt] * count, generation, **how)
    for i, text in enumerate(texts, 1):
        typer.echo(f"--- {i} of {count}")
        typer.echo(prompt + text)


def _print_best(run: Run, prompt: str, generation: Generation) -> None:
    from qkv.generation.text import best_texts

    (found,) = best_texts(run.model, run.tokenizer, [prompt], generation)
    for i, best in enumerate(found, 1):
        typer.echo(f"--- {i} of {len(found)}, score {best.score:.4f}, log probability {best.log_probability:.4f}")
        typer.echo(prompt + best.text)


def _print_choice(run: Run, prompt: str, options: list[str], by: str) -> None:
    from qkv.generation.decode.score import score_texts
    from qkv.report.table import print_table

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        choices = score_texts(run.model, run.tokenizer, prompt, options, by)  # type: ignore[arg-type]
    for note in notes:
        typer.echo(f"note: {note.message}", err=True)
    rows = [
        (repr(c.text), f"{c.probability:.1%}", f"{c.log_probability:.4f}", c.tokens, f"{c.score:.4f}") for c in choices
    ]
    print_table("", ["option", "probability", "log p", "tokens", f"score by {by}"], rows)
