"""What the tasks that read a table of examples have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from qkv.data.batch import Batch
from qkv.data.corpus import TRAIN
from qkv.data.records.model import Records, Role
from qkv.data.records.open import open_records, open_rows
from qkv.data.trained import trained_on
from qkv.data.vocabulary import Vocabulary
from qkv.spec.errors import UserError
from qkv.spec.recipe import Recipe
from qkv.spec.tokenizers import Tokenizer as TokenizerSpec
from qkv.tasks.material import OTHER, Example, ExampleMaterial, Material, with_vocabulary
from qkv.tasks.task import Task
from qkv.tokenizers.framing import Framed, shortened
from qkv.tokenizers.tokenizer import Tokenizer

Collate = Callable[[Sequence[Any]], Batch]


class ExampleTask(Task):
    """Rows of named columns, encoded one by one."""

    roles: ClassVar[tuple[Role, ...]]
    """The columns that the task needs."""

    def open(self, recipe: Recipe, vocabulary: Vocabulary | None = None) -> Material:
        records, recipe, vocabulary = self._read(recipe, vocabulary)
        cut = self.cut(recipe, vocabulary)
        examples = {split: self.examples(rows, vocabulary, cut) for split, rows in records.splits.items()}
        notes = (*records.notes, *cut.notes(sum(map(len, records.splits.values()))))
        return ExampleMaterial(recipe, records, vocabulary, examples, self.collator(recipe), notes)

    def open_other(self, recipe: Recipe, vocabulary: Vocabulary, source: str, own: Material | None) -> Material:
        records = open_rows(recipe.data, self.roles, source, OTHER)
        rows, unknown = self._known(records, vocabulary)
        cut = self.cut(recipe, vocabulary)
        examples = {OTHER: self.examples(rows, vocabulary, cut)}
        notes = (*records.notes, *unknown, *cut.notes(len(rows)))
        material = ExampleMaterial(recipe, replace(records, splits={OTHER: rows}), vocabulary, examples, self.collator(recipe), notes)
        material.fitted_on = own.fitted_on if isinstance(own, ExampleMaterial) else None
        return material

    def _known(self, records: Records, vocabulary: Vocabulary) -> tuple[list[dict[str, Any]], list[str]]:
        """The rows whose labels the run knows, and a sentence about the others. Raises ``UserError`` if there is none."""
        rows = records.splits[OTHER]
        unknown = [self.unknown_label(row, vocabulary) for row in rows]
        names = list(dict.fromkeys(label for label in unknown if label is not None))
        if not names:
            return rows, []
        kept = [row for row, label in zip(rows, unknown, strict=True) if label is None]
        some = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
        if not kept:
            raise UserError(
                f"the run knows none of the labels of {records.name}: {some}; it knows {', '.join(map(repr, vocabulary.labels[:5]))}"
            )
        count = len(rows) - len(kept)
        return kept, [
            f"{count:,} of {len(rows):,} rows of {records.name} have a label that the run does not know ({some}); they are not in the figures"
        ]

    def unknown_label(self, row: Mapping[str, Any], vocabulary: Vocabulary) -> str | None:
        """A label of the row that the run was not trained with; None if it knows all."""
        return None

    def part(self, material: ExampleMaterial, share: float) -> ExampleMaterial:
        """``material`` with so large a share of the rows of each split, evenly spread, to measure on; not to train on."""
        rows = {split: _spread(found, share) for split, found in material.records.items()}
        recipe, vocabulary = material.recipe, material.vocabulary
        cut = self.cut(recipe, vocabulary)
        examples = {split: self.examples(some if split != TRAIN else some[:1], vocabulary, cut) for split, some in rows.items()}
        records = Records(material.name, rows, {}, (), "", ())
        return ExampleMaterial(recipe, records, vocabulary, examples, self.collator(recipe))

    def sized(self, recipe: Recipe) -> Recipe:
        _, recipe, vocabulary = self._read(recipe, None)
        return with_vocabulary(recipe, vocabulary)

    def _read(self, recipe: Recipe, vocabulary: Vocabulary | None) -> tuple[Records, Recipe, Vocabulary]:
        records = open_records(recipe.data, self.roles)
        recipe = self.completed(recipe, records)
        return records, recipe, vocabulary or self.vocabulary(recipe, records)

    def completed(self, recipe: Recipe, records: Records) -> Recipe:
        """The recipe with what the data decides beside sizes."""
        return recipe

    @abstractmethod
    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        """Tokenizers and labels, from the training part alone."""

    @abstractmethod
    def limits(self, recipe: Recipe) -> dict[str, int]:
        """The most tokens of each role that the model can read."""

    def cut(self, recipe: Recipe, vocabulary: Vocabulary) -> Cut:
        """What shortens the examples to these limits."""
        return Cut(self.limits(recipe), recipe.model.types_read)

    def examples(self, rows: Sequence[Mapping[str, Any]], vocabulary: Vocabulary, cut: Cut) -> list[Example]:
        """The rows of a split as numbers; one example each, where the task does not say otherwise."""
        return [self.encode(row, vocabulary, cut) for row in rows]

    def encode(self, row: Mapping[str, Any], vocabulary: Vocabulary, cut: Cut) -> Example:
        """One row as numbers. Asked by ``examples``."""
        raise NotImplementedError

    @abstractmethod
    def collator(self, recipe: Recipe) -> Collate:
        """What makes a batch of the ``parts`` of some examples."""


def _spread(rows: list[dict[str, Any]], share: float) -> list[dict[str, Any]]:
    """So large a share of ``rows`` at even distances, one at least."""
    count = max(1, round(share * len(rows)))
    return [rows[i * len(rows) // count] for i in range(count)]


class Cut:
    """Shortens what is longer than the model can read, and counts how often: nothing is cut in silence.

    ``types_read`` gives of the types of tokens those that the model reads.
    """

    def __init__(self, limits: Mapping[str, int], types_read: Callable[[Sequence[int]], list[int]] = lambda types: []):
        self.limits, self.counts, self.longest = limits, dict.fromkeys(limits, 0), dict.fromkeys(limits, 0)
        self._types_read = types_read

    def __call__(self, ids: np.ndarray | list[int], role: str) -> np.ndarray:
        """The first ids of ``role`` that fit."""
        self._count(len(ids), role)
        return np.asarray(ids[: self.limits[role]], np.int64)

    def together(self, first: Sequence[int], second: Sequence[int], role: str) -> tuple[Sequence[int], Sequence[int]]:
        """The first ids of two texts that fit together; see ``qkv.tokenizers.framing.shortened``."""
        self._count(len(first) + len(second), role)
        kept = shortened((len(first), len(second)), self.limits[role])
        return first[: kept[0]], second[: kept[1]]

    def framed(self, found: Framed) -> Framed:
        """What the model reads of texts in their frame: without types if it tells none apart."""
        return found._replace(types=self._types_read(found.types))

    def _count(self, length: int, role: str) -> None:
        if length > self.limits[role]:
            self.counts[role] += 1
            self.longest[role] = max(self.longest[role], length)

    def note(self, length: int, role: str) -> dict[str, str]:
        """What to tell beside the answer to one input of so many tokens: that it was cut, if it was."""
        most = self.limits[role]
        return {"note": f"the input has {length} tokens and the model reads {most}; the rest was not read"} if length > most else {}

    def notes(self, examples: int) -> list[str]:
        """A sentence for each role that was cut."""
        return [
            f"{count:,} of {examples:,} examples were cut: their {role} is longer than the {self.limits[role]} tokens that fit "
            f"(the longest has {self.longest[role]:,})"
            for role, count in self.counts.items()
            if count
        ]


def trained(spec: TokenizerSpec, texts: Iterable[str], specials: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer of texts that each stand alone, with special tokens of these roles."""
    return trained_on(spec, list(texts)).with_specials(specials)


def framed_by(tokenizer: Tokenizer, texts: int) -> Tokenizer:
    """``tokenizer`` if its own template marks one text, or two; else with the marks ``cls`` and, for two, ``sep``."""
    marked = tokenizer.with_specials(("cls", "sep")[:texts])
    alike = marked.pair_frame == tokenizer.pair_frame if texts == 2 else marked.frame == tokenizer.frame
    return tokenizer if alike else marked


def text_in(row: Mapping[str, Any], role: str) -> str:
    """The text of a row that somebody gave. Raises ``UserError`` if it is none."""
    if not isinstance(row[role], str):
        raise UserError(f"{role}: {row[role]!r} is not a text")
    return row[role]


def column(records: Records, role: str) -> list[Any]:
    """What the training rows hold in one column."""
    return [row[role] for row in records.splits[TRAIN]]


def padded(rows: Sequence[np.ndarray], filler: int = 0) -> tuple[Tensor, Tensor]:
    """(B, longest) int64 with ``filler`` on the right of short rows, and the lengths (B)."""
    lengths = np.array([len(row) for row in rows], np.int64)
    found = np.full((len(rows), max(1, int(lengths.max(initial=0)))), filler, np.int64)
    for place, row in enumerate(rows):
        found[place, : len(row)] = row
    return torch.from_numpy(found), torch.from_numpy(lengths)


def types_or_none(rows: Sequence[np.ndarray]) -> Tensor | None:
    """The types of tokens (B, longest), of padding 0; None where the model reads none, so that there are none."""
    return padded(rows)[0] if any(len(row) for row in rows) else None


def lengths_or_none(ids: Tensor, lengths: Tensor) -> Tensor | None:
    """None where no row is padded, which is faster."""
    return None if bool((lengths == ids.shape[1]).all()) else lengths
