"""Options of ways to decode: ``--lookup``, ``--draft`` and ``--draft-tokens``; ``--regex`` and ``--json-schema``."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from qkv.cli.runs import run_or_published
from qkv.spec.errors import SpecError, UserError
from qkv.spec.generation import Generation, Speculation

if TYPE_CHECKING:
    from qkv.generation.speculate import Speculator
    from qkv.runs.run import Run

DRAFT_TOKENS = 4
"""Number of tokens that a draft model proposes at a time, unless given."""


class SpeculationOptions(NamedTuple):
    """Speculation asked for on the command line; ``draft``: folder of the draft model; ``copy``: read it to memory."""

    speculation: Speculation
    draft: Path | None
    copy: bool


class ConstraintOptions(NamedTuple):
    """Constraint asked for on the command line; ``json_schema``: text of the schema."""

    regex: str | None
    json_schema: str | None


DecodingOptions = SpeculationOptions | ConstraintOptions


def decoding_options(given: Mapping[str, Any]) -> DecodingOptions | None:
    """Check the options ``given`` (name -> value) without slow imports; None without any of these. Raises
    ``UserError``.
    """
    others = {"--image": given["image"], "--choose": given["choose"]}
    speculation = _speculation(given, others)
    written = {"--regex": given["regex"], "--json-schema": given["json_schema"]}
    asked = [name for name, value in written.items() if value is not None]
    if not asked:
        return speculation
    ways = {"--json-schema": len(asked) > 1, "--lookup": given["lookup"], "--draft": given["draft"]}
    if wrong := [name for name, value in {**others, "--ids": given["ids"], **ways}.items() if value]:
        raise UserError(f"{asked[0]}: {wrong[0]} cannot be combined with it; leave one of them out")
    file = given["json_schema"]
    return ConstraintOptions(given["regex"], None if file is None else _read(file))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"--json-schema: {str(file)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"--json-schema: {str(file)!r} is not UTF-8 at byte {error.start}") from None


def _speculation(given: Mapping[str, Any], others: Mapping[str, Any]) -> SpeculationOptions | None:
    lookup, draft, draft_tokens = given["lookup"], given["draft"], given["draft_tokens"]
    if lookup is None and draft is None:
        if draft_tokens is not None:
            raise UserError("--draft-tokens: it needs a draft model; name its run with --draft")
        return None
    option = "--lookup" if draft is None else "--draft"
    if lookup is not None and draft is not None:
        raise UserError("--draft: tokens are proposed either by --lookup or by a draft model; leave one of them out")
    if wrong := [name for name, value in others.items() if value]:
        raise UserError(f"{option}: {wrong[0]} decodes no text token by token; leave one of them out")
    count = lookup if draft is None else DRAFT_TOKENS if draft_tokens is None else draft_tokens
    if draft is None and draft_tokens is not None:
        raise UserError("--draft-tokens: it needs a draft model, and --lookup has its own number; leave it out")
    try:
        speculation = Speculation.parse({"kind": option[2:], "num_tokens": count})
    except SpecError as error:
        named = option if draft is None else "--draft-tokens"
        raise UserError(f"{named}: {error.problems[0].sentence}") from None
    return SpeculationOptions(speculation, draft and run_or_published(draft), given["copy"])


@contextmanager
def decoding(wanted: DecodingOptions | None, run: Run, generation: Generation) -> Generator[dict[str, Any]]:
    """Arguments of ``stream_text`` for the options; figures of speculation are printed on standard error at the end.

    Raises ``UserError`` for beam search, for a draft that cannot be loaded or has another vocabulary, and for a
    constraint that cannot be used.
    """
    if wanted is None:
        yield {}
    elif isinstance(wanted, ConstraintOptions):
        from qkv.generation.constrain import Constraint

        yield {"constraint": Constraint(run.tokenizer, wanted.regex, wanted.json_schema)}
    else:
        from qkv.generation.speculate import refuse_beams

        refuse_beams(generation)
        speculator = _speculator(wanted, run)
        yield {"speculation": speculator}
        typer.echo(speculator.summary(), err=True)


def _speculator(wanted: SpeculationOptions, run: Run) -> Speculator:
    from qkv.generation.speculate import Speculator, check_vocabularies
    from qkv.runs.load import load
    from qkv.tokenizers.absent import AbsentTokenizer

    draft = load(wanted.draft, copy=wanted.copy) if wanted.draft else None
    if draft is not None and not any(isinstance(each.tokenizer, AbsentTokenizer) for each in (run, draft)):
        check_vocabularies(run.tokenizer, draft.tokenizer)
    return Speculator(wanted.speculation, draft.model if draft else None)
