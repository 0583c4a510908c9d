"""Base class for tasks on a table of examples."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.data.batching.padding import padded
from qkv.data.corpora.corpus import TRAIN
from qkv.data.corpora.trained import trained_on
from qkv.data.processors.processor import build_processor
from qkv.data.records.duplicates import shared
from qkv.data.records.model import Records, Role
from qkv.data.records.open import open_records, open_rows
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.spec.data import Data
from qkv.spec.processors import Processor
from qkv.spec.recipe import Recipe
from qkv.spec.tokenizers import Tokenizer as TokenizerSpec
from qkv.system.errors import UserError
from qkv.tasks.dataset import OTHER, Dataset, Example, ExampleDataset, with_vocabulary
from qkv.tasks.task import Task
from qkv.tokenizers.framing import Framed, shortened
from qkv.tokenizers.tokenizer import Tokenizer

Collate = Callable[[Sequence[Any]], Batch]
Rows = list[dict[str, Any]]
_SHOWN = 3
"""Maximum number of unusable rows quoted in a message."""


class Reader(Protocol):
    """Converter of the inputs of rows to what the model reads, such as ``Truncation``, with notes for the user."""

    def notes(self, examples: int) -> list[str]:
        """Return messages about truncated inputs; ``examples``: total number of examples."""
        ...


class ExampleTask(Task):
    """Base class of tasks on tables: rows with named columns (roles: ``text``, ``label``, …), encoded one by one."""

    roles: tuple[Role, ...]
    """Columns that the task needs."""

    def open(self, recipe: Recipe, vocabulary: Vocabulary | None = None) -> Dataset:
        records, recipe, vocabulary = self._read(recipe, vocabulary)
        reader = self.reader(recipe, vocabulary)
        return self._dataset(recipe, records, vocabulary, reader)

    def _dataset(
        self, recipe: Recipe, records: Records, vocabulary: Vocabulary, reader: Reader, notes: Sequence[str] = ()
    ) -> ExampleDataset:
        """Encode ``records`` to a data set, without the rows whose values cannot be encoded."""
        splits, examples, sentences = dict[str, Rows](), dict[str, list[Example]](), [*records.notes, *notes]
        for split, rows in records.splits.items():
            splits[split], examples[split], bad = self.usable(rows, vocabulary, reader)
            sentences += _unusable(
                bad, len(rows), f"the {split} split of {records.name}", recipe.data.bad_rows == "refuse"
            )
        sentences += reader.notes(sum(map(len, splits.values())))
        collate = self.collator(recipe, vocabulary)
        records, change = replace(records, splits=splits), self.change(recipe, vocabulary)
        return ExampleDataset(recipe, records, vocabulary, examples, collate, tuple(sentences), change)

    def open_other(self, recipe: Recipe, vocabulary: Vocabulary, source: str, training_data: Dataset | None) -> Dataset:
        records = open_rows(recipe.data, self.roles, source, OTHER)
        rows, unknown = self._rows_with_known_labels(records, vocabulary)
        note = (
            shared(rows, source, training_data.records[TRAIN], self.roles)
            if isinstance(training_data, ExampleDataset)
            else ""
        )
        notes = (*unknown, *([note] if note else []))
        records = replace(records, splits={OTHER: rows})
        dataset = self._dataset(recipe, records, vocabulary, self.reader(recipe, vocabulary), notes)
        if isinstance(training_data, ExampleDataset):
            dataset.fitted_on, dataset.fitted_examples = training_data.fitted_on, training_data.fitted_examples
        return dataset

    def _rows_with_known_labels(
        self, records: Records, vocabulary: Vocabulary
    ) -> tuple[list[dict[str, Any]], list[str]]:
        """Return (rows whose labels occurred in training, notes about the others). Raises ``UserError`` if no label
        occurred.
        """
        rows = records.splits[OTHER]
        unknown = [self.unknown_label(row, vocabulary) for row in rows]
        names = list(dict.fromkeys(label for label in unknown if label is not None))
        if not names:
            return rows, []
        usable = [row for row, label in zip(rows, unknown, strict=True) if label is None]
        some = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
        if not usable:
            raise UserError(
                f"no label of {records.name} occurred in training: {some}; labels of the run: "
                f"{', '.join(map(repr, vocabulary.labels[:5]))}"
            )
        count = len(rows) - len(usable)
        return usable, [
            f"{count:,} of {len(rows):,} rows of {records.name} have a label that did not occur in training ({some}); "
            "they are excluded from the metrics"
        ]

    def unknown_label(self, row: Mapping[str, Any], vocabulary: Vocabulary) -> str | None:
        """Return the first label of the row that has no class, as it did not occur in training, or None."""
        return None

    def part(self, dataset: ExampleDataset, share: float) -> ExampleDataset:
        """Return a copy of the data with an evenly spaced fraction ``share`` of each split's rows, to time evaluation.

        Only the first row of the training split is encoded.
        """
        rows = {split: _spread(rows_of_split, share) for split, rows_of_split in dataset.records.items()}
        recipe, vocabulary = dataset.recipe, dataset.vocabulary
        reader = self.reader(recipe, vocabulary)
        examples = {
            split: self.examples(some if split != TRAIN else some[:1], vocabulary, reader)
            for split, some in rows.items()
        }
        records = Records(dataset.name, rows, {}, (), "", ())
        return ExampleDataset(recipe, records, vocabulary, examples, self.collator(recipe, vocabulary))

    def sized(self, recipe: Recipe) -> Recipe:
        _, recipe, vocabulary = self._read(recipe, None)
        return with_vocabulary(recipe, vocabulary)

    def _read(self, recipe: Recipe, vocabulary: Vocabulary | None) -> tuple[Records, Recipe, Vocabulary]:
        records = open_records(recipe.data, self.roles)
        recipe = recipe.changed(data=recipe.data.changed(columns=records.columns))  # so that a run never guesses again
        recipe = self.completed(recipe, records)
        return records, recipe, vocabulary or self.vocabulary(recipe, records)

    def completed(self, recipe: Recipe, records: Records) -> Recipe:
        """Return a copy of the recipe with settings from the data other than sizes, such as the mean of the targets."""
        return recipe

    @abstractmethod
    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        """Build the tokenizers and the list of labels, from the training split only."""

    @abstractmethod
    def limits(self, recipe: Recipe) -> dict[str, int]:
        """Return the maximum number of tokens of each input role, such as {"text": 511}."""

    def reader(self, recipe: Recipe, vocabulary: Vocabulary) -> Reader:
        """Return the reader of inputs; by default it truncates to ``limits`` and counts the truncated inputs."""
        return Truncation(self.limits(recipe), recipe.model.types_read)

    def usable(self, rows: Rows, vocabulary: Vocabulary, reader: Reader) -> tuple[Rows, list[Example], list[str]]:
        """Return (rows whose values can be encoded, their examples, a sentence about each of the other rows)."""
        return rows, self.examples(rows, vocabulary, reader), []

    def examples(self, rows: Sequence[Mapping[str, Any]], vocabulary: Vocabulary, reader: Any) -> list[Example]:
        """Encode rows to examples: one per row by default, several where long rows are split into windows.

        ``reader``: the result of the method ``reader``.
        """
        return [self.encode(row, vocabulary, reader) for row in rows]

    def encode(self, row: Mapping[str, Any], vocabulary: Vocabulary, reader: Any) -> Example:
        """Encode one row to an example. Called by ``examples``."""
        raise NotImplementedError

    def change(self, recipe: Recipe, vocabulary: Vocabulary) -> Callable[[Batch, np.random.Generator], Batch] | None:
        """Return the function that changes training batches at random; None for no change."""
        return None

    @abstractmethod
    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Collate:
        """Return the function that collates several examples into a batch."""


def encode_rows(rows: Rows, encode: Callable[[Mapping[str, Any]], Example]) -> tuple[Rows, list[Example], list[str]]:
    """Encode rows one by one; return (rows that can be encoded, their examples, a sentence about each other row)."""
    usable, examples, bad = list[dict[str, Any]](), list[Example](), list[str]()
    for row in rows:
        try:
            examples.append(encode(row))
            usable.append(row)
        except Unusable as error:
            bad.append(str(error))
    return usable, examples, bad


def _unusable(bad: Sequence[str], count: int, name: str, refuse: bool) -> list[str]:
    """Return a note about the unusable rows ``bad`` out of ``count`` rows; an empty list without any.

    Raises ``UserError`` if any row is unusable and ``refuse`` is true, or if more than half are unusable.
    """
    if not bad:
        return []
    reasons = Counter(bad).most_common()
    rest = len(bad) - sum(times for _, times in reasons[:_SHOWN])
    some = "; ".join(f"{reason} ({times:,} times)" if times > 1 else reason for reason, times in reasons[:_SHOWN])
    some += f"; and {rest:,} more" if rest else ""
    what = f"{len(bad):,} of {count:,} rows of {name}"
    if refuse or 2 * len(bad) > count:
        raise UserError(f"{what} cannot be used: {some}")
    return [f"{what} {'was' if len(bad) == 1 else 'were'} left out: {some}"]


def _spread(rows: list[dict[str, Any]], share: float) -> list[dict[str, Any]]:
    """Return an evenly spaced fraction ``share`` of ``rows``, at least one row."""
    count = max(1, round(share * len(rows)))
    return [rows[i * len(rows) // count] for i in range(count)]


class Truncation:
    """Truncation of token ids to a limit per role; counts truncated inputs for the notes to the user.

    ``types_read``: function from the token types (segment ids) of a text to the token types that the model reads; by
    default none. ``unit``: noun for positions in messages.
    """

    def __init__(
        self,
        limits: Mapping[str, int],
        types_read: Callable[[Sequence[int]], list[int]] = lambda types: [],
        unit: str = "tokens",
    ):
        self.limits, self.counts, self.longest = limits, dict.fromkeys(limits, 0), dict.fromkeys(limits, 0)
        self._types_read, self._unit = types_read, unit

    def __call__(self, ids: np.ndarray | list[int], role: str) -> np.ndarray:
        """Return the first ids, up to the limit of ``role``."""
        self._count(len(ids), role)
        return np.asarray(ids[: self.limits[role]], np.int64)

    def together(self, first: Sequence[int], second: Sequence[int], role: str) -> tuple[Sequence[int], Sequence[int]]:
        """Truncate two texts to the limit of ``role`` for both together, see ``qkv.tokenizers.framing.shortened``."""
        self._count(len(first) + len(second), role)
        lengths = shortened((len(first), len(second)), self.limits[role])
        return first[: lengths[0]], second[: lengths[1]]

    def framed(self, framed_text: Framed) -> Framed:
        """Return a copy of ``framed_text`` with only the token types that the model reads."""
        return framed_text._replace(types=self._types_read(framed_text.types))

    def _count(self, length: int, role: str) -> None:
        if length > self.limits[role]:
            self.counts[role] += 1
            self.longest[role] = max(self.longest[role], length)

    def note(self, length: int, role: str) -> dict[str, str]:
        """Return a note for a prediction if its input of ``length`` tokens was truncated, else an empty dict."""
        most = self.limits[role]
        return (
            {"note": f"the input has {length} {self._unit} and the model reads {most}; the rest was not read"}
            if length > most
            else {}
        )

    def notes(self, examples: int) -> list[str]:
        """Return one message per role with truncated inputs, with their number out of ``examples``."""
        return [
            f"{count:,} of {examples:,} examples were truncated: their {role} is longer than the {self.limits[role]} "
            f"{self._unit} that fit (the longest has {self.longest[role]:,})"
            for role, count in self.counts.items()
            if count
        ]


def trained(spec: TokenizerSpec, texts: Iterable[str], specials: Sequence[str] = ()) -> Tokenizer:
    """Train a tokenizer on separate texts, with special tokens for the roles ``specials`` (such as "mask")."""
    return trained_on(spec, list(texts)).with_specials(specials)


def framed_by(tokenizer: Tokenizer, texts: int) -> Tokenizer:
    """Return a tokenizer that frames ``texts`` texts, one or two, with special tokens such as [CLS] and [SEP].

    This is ``tokenizer`` itself if it has a template for as many texts; otherwise a copy with the special token ``cls``
    and, for two texts, ``sep``.
    """
    marked = tokenizer.with_specials(("cls", "sep")[:texts])
    alike = marked.pair_frame == tokenizer.pair_frame if texts == 2 else marked.frame == tokenizer.frame
    return tokenizer if alike else marked


def text_in(row: Mapping[str, Any], role: str) -> str:
    """Return the text in the column ``role`` of a row. Raises ``UserError`` if it is not a string."""
    if not isinstance(row[role], str):
        raise UserError(f"{role}: {row[role]!r} is not a text")
    return row[role]


def column(records: Records, role: str) -> list[Any]:
    """Return the values of the column ``role`` in the training rows."""
    return [row[role] for row in records.splits[TRAIN]]


def fit_processors(data: Data, records: Records) -> dict[str, Processor]:
    """Fit the processor of each input that is not text to its training values. Raises ``UserError``."""
    processors = {name: build_processor(each) for name, each in data.processors.items()}
    return {name: each.fitted(column(records, each.role_of(name).name)) for name, each in processors.items()}


def types_or_none(rows: Sequence[np.ndarray]) -> Tensor | None:
    """Pad the token types of the rows with 0 to (B, longest); return None if no row has any (the model reads none)."""
    return padded(rows)[0] if any(len(row) for row in rows) else None
