"""Options of speculative decoding: ``--lookup``, ``--draft`` and ``--draft-tokens``."""

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


def asked(
    lookup: int | None, draft: Path | None, draft_tokens: int | None, copy: bool, others: Mapping[str, Any]
) -> SpeculationOptions | None:
    """Check the options without slow imports; None without any. ``others``: options that exclude them, by name.

    Raises ``UserError``.
    """
    if lookup is None and draft is None:
        if draft_tokens is not None:
            raise UserError("--draft-tokens: it needs a draft model; name its run with --draft")
        return None
    option = "--lookup" if draft is None else "--draft"
    if lookup is not None and draft is not None:
        raise UserError("--draft: tokens are proposed either by --lookup or by a draft model; leave one of them out")
    if given := [name for name, value in others.items() if value]:
        raise UserError(f"{option}: {given[0]} decodes no text token by token; leave one of them out")
    count = lookup if draft is None else DRAFT_TOKENS if draft_tokens is None else draft_tokens
    if draft is None and draft_tokens is not None:
        raise UserError("--draft-tokens: it needs a draft model, and --lookup has its own number; leave it out")
    try:
        speculation = Speculation.parse({"kind": option[2:], "num_tokens": count})
    except SpecError as error:
        named = option if draft is None else "--draft-tokens"
        raise UserError(f"{named}: {error.problems[0].sentence}") from None
    return SpeculationOptions(speculation, draft and run_or_published(draft), copy)


@contextmanager
def speculating(wanted: SpeculationOptions | None, run: Run, generation: Generation) -> Generator[Speculator | None]:
    """Speculator of the options, None without any; its figures are printed on standard error at the end.

    Raises ``UserError`` for beam search, and for a draft that cannot be loaded or has another vocabulary.
    """
    if wanted is None:
        yield None
        return
    from qkv.generation.speculate import Speculator, check_vocabularies, refuse_beams
    from qkv.runs.load import load
    from qkv.tokenizers.absent import AbsentTokenizer

    refuse_beams(generation)
    draft = load(wanted.draft, copy=wanted.copy) if wanted.draft else None
    if draft is not None and not any(isinstance(each.tokenizer, AbsentTokenizer) for each in (run, draft)):
        check_vocabularies(run.tokenizer, draft.tokenizer)
    speculator = Speculator(wanted.speculation, draft.model if draft else None)
    yield speculator
    typer.echo(speculator.summary(), err=True)
