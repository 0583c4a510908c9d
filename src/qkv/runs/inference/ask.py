"""Few-shot prompting of a run with examples and inputs from tables; accuracy compared with a baseline."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qkv.data.records.columns.guess import choose
from qkv.data.records.formats import table_of
from qkv.data.records.model import Role
from qkv.data.records.table import Row, Table
from qkv.data.records.values import Unusable, Values
from qkv.generation.few_shot import LABEL, FewShot, FewShotAnswer, Template
from qkv.runs.run import Run
from qkv.spec.data import Data
from qkv.spec.generation import Generation, Measure
from qkv.system.errors import UserError

OPTIONS = "options"
MAX_OPTIONS = 50
"""Maximum number of distinct labels in the examples for which the labels serve as options; with more labels, answers
are generated.
"""
_TEXT = ("text", "sentence", "question", "review", "input", "prompt", "premise")
"""Names of columns from which the field ``text`` is read unless the caller names another column."""
_LABEL = Role(LABEL, "label", ("label", "answer", "class", "category", "target", "gold", "sentiment"))
_OPTIONS = Role(OPTIONS, "labels", ("options", "choices", "endings"))


class FewShotRows(NamedTuple):
    """Rows of a table, as mappings from fields of the template to texts; ``options``: answer options of each row, None
    if the table has no such column; ``notes``: sentences for the user.
    """

    rows: list[dict[str, str]]
    options: list[tuple[str, ...]] | None
    notes: list[str]


class Accuracy(NamedTuple):
    """Share of correct answers with its 95 % confidence interval (Wilson 1927)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1%} ({self.low:.1%} to {self.high:.1%})"


class Baseline(NamedTuple):
    """Accuracy (``value``) and name of a baseline that does not read the inputs."""

    value: float
    name: str


def read_rows(source: str, template: Template, option: str, columns: Mapping[str, str], labelled: bool) -> FewShotRows:
    """Read the fields of ``template`` from the table in the file ``source``.

    option: command line option that named the file, for error messages. columns: field -> column; default: guessed.
    labelled: True if labels are required; otherwise they are read if the table has a column for them, and so are
    options. A label may be the text, the index from 0, or the letter of one of the options in its row. Raises
    ``UserError`` for a file that is not a table, and for rows that cannot be used.
    """
    fields = [Role(name, "text", _TEXT if name == "text" else (name,)) for name in template.fields]
    table = table_of(source, Data(source=source), (*fields, _LABEL), option)
    extra_roles, settings = _roles_to_read(table, columns, labelled)
    choice = choose(table, [*fields, *extra_roles], settings, option)
    values = Values([*fields, *extra_roles], choice.columns, missing=table.missing, separator=choice.separator)
    several = [] if _OPTIONS in extra_roles else None
    questions = FewShotRows([], several, [*table.notes, *([choice.note] if choice.note else [])])
    for row in table.rows:
        if not isinstance(row, Row):
            raise UserError(f"{option}: {table.place(row.line)} cannot be read: {row.reason}")
        try:
            example = values(row)
        except Unusable as error:
            raise UserError(f"{option}: {table.place(row.line)}: {error}") from None
        if several is not None:
            several.append(tuple(example.pop(OPTIONS)))
            if LABEL in example:
                example[LABEL] = _named(example[LABEL], several[-1])
        questions.rows.append(example)
    if not questions.rows:
        raise UserError(f"{option}: {table.name} has no rows")
    return questions


def _roles_to_read(table: Table, columns: Mapping[str, str], labelled: bool) -> tuple[list[Role], dict[str, str]]:
    """Return (roles to read among label and options, field -> column). A role is read if it is required, if the caller
    names its column, or if the table has a column of that name.
    """
    by_lower = {name.lower(): name for name in table.columns}
    roles, settings = [], dict(columns)
    for role, needed in ((_LABEL, labelled), (_OPTIONS, False)):
        column = next((by_lower[name] for name in role.names if name in by_lower), None)
        if needed or role.name in columns or column is not None:
            roles.append(role)
        if column is not None:
            settings.setdefault(role.name, column)
    return roles, settings


def _named(label: str, options: Sequence[str]) -> str:
    """Return the option that a label refers to: by its text, its index from 0, or its letter."""
    if label in options:
        return label
    place = int(label) if label.isdecimal() else ord(label) - ord("A") if len(label) == 1 else -1
    if not 0 <= place < len(options):
        raise UserError(f"the label {label!r} is not among the options {', '.join(map(repr, options))}")
    return options[place]


def few_shot(
    run: Run, examples: Sequence[Mapping[str, str]], template: Template, count: int | None = None, seed: int = 0
) -> FewShot:
    """Build a prompt for ``run`` from ``count`` of the examples, sampled with ``seed`` if there are more; None: all."""
    chosen = list(examples)
    if count is not None and len(chosen) > count:
        chosen = random.Random(seed).sample(chosen, count)
    return FewShot(run.model, run.tokenizer, chosen, template)


def options_of(examples: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the distinct labels of the examples in alphabetical order; none if there are more than ``MAX_OPTIONS``."""
    labels = sorted({row[LABEL] for row in examples})
    return tuple(labels) if len(labels) <= MAX_OPTIONS else ()


def options_of_rows(
    options: Sequence[str] | Sequence[Sequence[str]] | None, count: int, examples: Sequence[Mapping[str, str]]
) -> list[tuple[str, ...]] | None:
    """Return the options of each of ``count`` inputs; None if answers are generated.

    ``options``: those of all inputs, or of each input; by default the labels of the examples. Raises ``UserError`` for
    options of another number of inputs.
    """
    if not options or isinstance(options[0], str):
        common = tuple(map(str, options or ())) or options_of(examples)
        return [common] * count if common else None
    if len(options) != count:
        raise UserError(f"options: {len(options)} lists given for {count} inputs; give one for each, or one for all")
    return [tuple(each) for each in options]


def answers(
    prompt: FewShot,
    inputs: Sequence[Mapping[str, str]],
    options: Sequence[Sequence[str]] | None,
    by: Measure = "sum",
    calibrate: bool = False,
    generation: Generation | None = None,
) -> list[FewShotAnswer]:
    """Answer each input with the best of its options, or with generated text (by default greedy) if there are no
    options. Examples that exceed the model's context length are dropped.
    """
    generation = generation or Generation(temperature=0.0, max_new_tokens=32)
    prompt = prompt.fitted(inputs, 0 if options else generation.max_new_tokens)
    return prompt.choose(inputs, options, by, calibrate) if options else prompt.write(inputs, generation)


def accuracy_of(right: int, count: int) -> Accuracy:
    """Compute the accuracy of ``right`` correct answers among ``count``, with its 95 % confidence interval."""
    from scipy.stats import binomtest

    interval: Any = binomtest(right, count).proportion_ci(0.95, "wilson")
    return Accuracy(right / count, interval.low, interval.high)


def baseline(rows: Sequence[Mapping[str, str]], options: Sequence[Sequence[str]] | None) -> Baseline:
    """Return the accuracy of always answering the most frequent label of these rows, or of guessing if the rows have
    different options.
    """
    if options and len(set(map(tuple, options))) > 1:
        return Baseline(sum(1 / len(options_of_row) for options_of_row in options) / len(options), "chance")
    ((label, times),) = Counter(row[LABEL] for row in rows).most_common(1)
    return Baseline(times / len(rows), f"most frequent label ({label})")
