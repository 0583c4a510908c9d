"""Command-line options of speculative and constrained decoding.

Speculation: ``--lookup``, ``--draft`` and ``--draft-tokens``. Constraints: ``--regex``, ``--json-schema`` and
``--open-objects``.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from qkv.cli.shared.inputs import text_of_file
from qkv.cli.shared.runs import run_or_published
from qkv.spec.errors import SpecError
from qkv.spec.generation import Generation, Speculation
from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.generation.decode.speculate import Speculator
    from qkv.runs.run import Run

DRAFT_TOKENS = 4
"""Default number of tokens that a draft model proposes at a time."""


class SpeculationOptions(NamedTuple):
    """Options of speculative decoding; ``draft``: folder of the draft model; ``copy``: read its weights into memory."""

    speculation: Speculation
    draft: Path | None
    copy: bool


class ConstraintOptions(NamedTuple):
    """Options of constrained decoding; ``json_schema``: text of the schema; other fields: see ``Constraint``."""

    regex: str | None
    json_schema: str | None
    open_objects: bool = False


class DecodingOptions(NamedTuple):
    """Options of speculative and constrained decoding; None: not used."""

    speculation: SpeculationOptions | None = None
    constraint: ConstraintOptions | None = None


def decoding_options(
    lookup: int | None,
    draft: Path | None,
    draft_tokens: int | None,
    regex: str | None,
    json_schema: Path | None,
    open_objects: bool,
    copy: bool,
    others: Mapping[str, bool],
) -> DecodingOptions:
    """Check the options without slow imports.

    ``others``: whether each option that excludes constraints is given, by name; all but ``--ids`` exclude speculation
    too. Raises ``UserError``.
    """
    if open_objects and json_schema is None:
        raise UserError("--open-objects: it applies to --json-schema, which is not given; leave it out")
    given = [name for name, asked in others.items() if asked]
    asked = [name for name, value in (("--regex", regex), ("--json-schema", json_schema)) if value is not None]
    if asked and (wrong := [*asked[1:], *given]):
        raise UserError(f"{asked[0]}: {wrong[0]} cannot be combined with it; leave one of them out")
    speculation = speculation_options(lookup, draft, draft_tokens, copy, [name for name in given if name != "--ids"])
    schema = None if json_schema is None else text_of_file(json_schema, "--json-schema")
    return DecodingOptions(speculation, ConstraintOptions(regex, schema, open_objects) if asked else None)


def speculation_options(
    lookup: int | None, draft: Path | None, draft_tokens: int | None, copy: bool = False, others: Sequence[str] = ()
) -> SpeculationOptions | None:
    """Check the options of speculation without slow imports. ``others``: names of given options that exclude
    speculation.

    Raises ``UserError``.
    """
    if lookup is None and draft is None:
        if draft_tokens is not None:
            raise UserError("--draft-tokens: it needs a draft model; name its run with --draft")
        return None
    option = "--lookup" if draft is None else "--draft"
    if lookup is not None and draft is not None:
        raise UserError("--draft: tokens are proposed either by --lookup or by a draft model; leave one of them out")
    if others:
        raise UserError(f"{option}: {others[0]} does not generate text token by token; leave one of them out")
    if draft is None and draft_tokens is not None:
        raise UserError("--draft-tokens: it needs a draft model; --lookup sets the number itself; leave it out")
    count = lookup if draft is None else DRAFT_TOKENS if draft_tokens is None else draft_tokens
    try:
        speculation = Speculation.parse({"kind": option[2:], "num_tokens": count})
    except SpecError as error:
        named = option if draft is None else "--draft-tokens"
        raise UserError(f"{named}: {error.problems[0].sentence}") from None
    return SpeculationOptions(speculation, draft and run_or_published(draft), copy)


@contextmanager
def decoding(wanted: DecodingOptions, run: Run, generation: Generation) -> Generator[dict[str, Any]]:
    """Context manager that yields the arguments of ``stream_text`` for the options.

    At the end, it prints the statistics of speculation on standard error. Raises ``UserError`` for speculation with
    beam search, for a draft model that cannot be loaded or has another vocabulary, and for an unusable constraint.
    """
    arguments: dict[str, Any] = {}
    if wanted.constraint is not None:
        from qkv.generation.logits.constrain import Constraint

        arguments["constraint"] = constraint = Constraint(run.tokenizer, *wanted.constraint)
        if constraint.dropped:
            typer.echo(f"note: {constraint.note}", err=True)
    if wanted.speculation is None:
        yield arguments
        return
    from qkv.generation.decode.speculate import refuse_beams

    refuse_beams(generation)
    speculator = speculator_of(wanted.speculation, run)
    yield {**arguments, "speculation": speculator}
    typer.echo(speculator.summary(), err=True)


def speculator_of(wanted: SpeculationOptions, run: Run) -> Speculator:
    """Build the speculator for the options, and load its draft model.

    Raises ``UserError`` if the draft model has another vocabulary than ``run``.
    """
    from qkv.generation.decode.speculate import Speculator, check_vocabularies
    from qkv.runs.storage.load import load

    draft = load(wanted.draft, copy=wanted.copy) if wanted.draft else None
    if draft is not None and not any(each.tokenizer.absent for each in (run, draft)):
        check_vocabularies(run.tokenizer, draft.tokenizer)
    return Speculator(wanted.speculation, draft.model if draft else None)
