"""Options of speculative and constrained decoding, and what they select."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from qkv.cli.shared.inputs import text_of_file
from qkv.cli.shared.runs import run_or_published
from qkv.spec.errors import SpecError
from qkv.spec.generation import Speculation
from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.generation.decode.speculate import Speculator
    from qkv.runs.run import Run
    from qkv.tokenizers.tokenizer import Tokenizer

DRAFT_TOKENS = 4
"""Default number of tokens that a draft model proposes at a time."""


class SpeculationSettings(NamedTuple):
    """Settings of speculative decoding; ``draft``: folder of the draft model; ``copy``: read its weights into
    memory.
    """

    speculation: Speculation
    draft: Path | None
    copy: bool


class ConstraintSettings(NamedTuple):
    """Settings of constrained decoding; ``json_schema``: text of the schema; other fields: see ``Constraint``."""

    regex: str | None
    json_schema: str | None
    open_objects: bool = False


class DecodingSettings(NamedTuple):
    """Settings of speculative and constrained decoding; None: not used."""

    speculation: SpeculationSettings | None = None
    constraint: ConstraintSettings | None = None


class SpeculationOptions(NamedTuple):
    """Options of speculative decoding."""

    lookup: Annotated[
        int | None,
        typer.Option("--lookup", metavar="N", help="Propose N tokens at a time by n-gram look-up in the text."),
    ] = None
    draft: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Propose tokens by a smaller model with the same vocabulary.")
    ] = None
    draft_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Number of tokens that the draft proposes at a time; default: 4.")
    ] = None

    def settings(self, copy: bool = False, exclusive: Sequence[str] = ()) -> SpeculationSettings | None:
        """Check the options without slow imports. ``exclusive``: names of given options that exclude speculation.

        Raises ``UserError``.
        """
        if self.lookup is None and self.draft is None:
            if self.draft_tokens is not None:
                raise UserError("--draft-tokens: it needs a draft model; name its run with --draft")
            return None
        option = "--lookup" if self.draft is None else "--draft"
        if self.lookup is not None and self.draft is not None:
            raise UserError(
                "--draft: tokens are proposed either by --lookup or by a draft model; leave one of them out"
            )
        if exclusive:
            raise UserError(f"{option}: {exclusive[0]} does not generate text token by token; leave one of the two out")
        if self.draft is None and self.draft_tokens is not None:
            raise UserError(
                "--draft-tokens: only a draft model uses it, and --lookup N proposes N tokens; leave --draft-tokens out"
            )
        return SpeculationSettings(self._spec(option), self.draft and run_or_published(self.draft), copy)

    def _spec(self, option: str) -> Speculation:
        drafted = DRAFT_TOKENS if self.draft_tokens is None else self.draft_tokens
        count = self.lookup if self.draft is None else drafted
        try:
            return Speculation.parse({"kind": option[2:], "num_tokens": count})
        except SpecError as error:
            named = option if self.draft is None else "--draft-tokens"
            raise UserError(f"{named}: {error.problems[0].sentence}") from None


class ConstraintOptions(NamedTuple):
    """Options of constrained decoding."""

    regex: Annotated[
        str | None, typer.Option(metavar="EXPRESSION", help="Generate only text that matches this regular expression.")
    ] = None
    json_schema: Annotated[Path | None, typer.Option(metavar="FILE", help="Generate JSON that this schema allows.")] = (
        None
    )
    open_objects: Annotated[bool, typer.Option("--open-objects", help="Allow keys that the schema does not name.")] = (
        False
    )

    def settings(self, exclusive: Sequence[str]) -> ConstraintSettings | None:
        """Check the options, and read the schema. ``exclusive``: names of given options that exclude constraints.

        Raises ``UserError``.
        """
        values = {"--regex": self.regex, "--json-schema": self.json_schema}
        if self.open_objects and self.json_schema is None:
            raise UserError("--open-objects: it applies to --json-schema, which is not given; leave it out")
        first, *more = [*(name for name, value in values.items() if value is not None), *exclusive] or [""]
        if first not in values:
            return None
        if more:
            raise UserError(f"{first}: {more[0]} cannot be combined with it; leave one of them out")
        schema = None if self.json_schema is None else text_of_file(self.json_schema, "--json-schema")
        return ConstraintSettings(self.regex, schema, self.open_objects)


def decoding_settings(
    speculation: SpeculationOptions, constraint: ConstraintOptions, copy: bool, exclusive: Mapping[str, bool]
) -> DecodingSettings:
    """Check the options without slow imports.

    ``exclusive``: whether each option that excludes constraints is given, by name; all but ``--ids`` also exclude
    speculation. Raises ``UserError``.
    """
    names = [name for name, present in exclusive.items() if present]
    constrained = constraint.settings(names)
    return DecodingSettings(speculation.settings(copy, [name for name in names if name != "--ids"]), constrained)


@contextmanager
def decoding(settings: DecodingSettings, run: Run, tokenizer: Tokenizer) -> Generator[dict[str, Any]]:
    """Context manager that yields the arguments of ``stream_text`` for the settings.

    At the end, it prints the statistics of speculation on standard error. Raises ``UserError`` for a draft model that
    cannot be loaded or has another vocabulary, and for an unusable constraint.
    """
    arguments: dict[str, Any] = {}
    if settings.constraint is not None:
        from qkv.generation.logits.constrain import Constraint

        arguments["constraint"] = constraint = Constraint(tokenizer, *settings.constraint)
        if constraint.dropped:
            typer.echo(f"note: {constraint.note}", err=True)
    if settings.speculation is None:
        yield arguments
        return
    speculator = speculator_of(settings.speculation, run)
    yield {**arguments, "speculation": speculator}
    typer.echo(speculator.summary(), err=True)


def speculator_of(settings: SpeculationSettings, run: Run) -> Speculator:
    """Build the speculator for the settings, and load its draft model.

    Raises ``UserError`` if the draft model has another vocabulary than ``run``.
    """
    from qkv.generation.decode.speculate import Speculator, check_vocabularies
    from qkv.runs.storage.load import load

    draft = load(settings.draft, copy=settings.copy) if settings.draft else None
    if draft is not None and not any(each.tokenizer.absent for each in (run, draft)):
        check_vocabularies(run.tokenizer, draft.tokenizer)
    return Speculator(settings.speculation, draft.model if draft else None)
