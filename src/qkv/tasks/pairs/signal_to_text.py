"""Base class of tasks that write a text about a signal, such as a sound or an image, by an encoder–decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from qkv.data.batching.batch import IGNORED, SOURCE, Batch
from qkv.data.batching.padding import lengths_or_none, padded
from qkv.data.corpora.corpus import VALIDATION
from qkv.data.processors.processor import Processor, build_processor
from qkv.data.records.model import Records
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal
from qkv.models.transformer import Transformer
from qkv.spec.data import Data
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import Dataset, Example, ExampleDataset
from qkv.tasks.example_task import Collate, Truncation, column, fit_processors, text_in, trained
from qkv.tasks.pairs.pairs import TokenPair, marks, write_from
from qkv.tasks.pairs.sequence_to_sequence import SequenceToSequenceTask

_AT_ONCE = 8
"""Batch size of generation."""


class TextOfSignal(Truncation):
    """Truncation of texts, with the processor of the signals."""

    def __init__(self, limits: Mapping[str, int], processor: Processor):
        super().__init__(limits)
        self.processor = processor

    def notes(self, examples: int) -> list[str]:
        return [*super().notes(examples), *self.processor.notes()]


class SignalToTextTask(SequenceToSequenceTask):
    """Base class of tasks whose encoder reads a signal, and whose decoder writes its text; ``roles``: both columns.

    With several inputs by name, such as an image and a question, one stack reads them in a row before the text.
    """

    text: tuple[str, ...] = ()
    writes_from_source = False
    automatic = None

    def reading(self, data: Data) -> Self:
        if data.processor is not None:
            role = build_processor(data.processor).role
            self.roles, self.asks = (role, self.roles[1]), (role.name,)
        return super().reading(data)

    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        if self.inputs:
            return super().vocabulary(recipe, records)
        tokenizer = trained(recipe.data.tokenizer, column(records, "target"), self._roles)
        return Vocabulary(tokenizer, tokenizer, (), fit_processors(recipe.data, records))

    def limits(self, recipe: Recipe) -> dict[str, int]:
        limits = super().limits(recipe)
        return limits if self.inputs else {"target": limits["target"]}

    def reader(self, recipe: Recipe, vocabulary: Vocabulary) -> Truncation:
        if self.inputs:
            return super().reader(recipe, vocabulary)
        return TextOfSignal(self.limits(recipe), self.processor_of(vocabulary))

    def processor_of(self, vocabulary: Vocabulary) -> Processor:
        """Return the processor of the signal, the first of several inputs that are not text. Raises ``UserError``."""
        processor = vocabulary.processor or next(iter(vocabulary.processors.values()), None)
        if processor is None:
            raise UserError(f"the task {self.spec.kind!r} reads a signal; give data.processor")
        return build_processor(processor)

    def encode(self, row: Mapping[str, Any], vocabulary: Vocabulary, cut: Any) -> Example:
        if self.inputs:
            return super().encode(row, vocabulary, cut)
        value = cut.processor.read(row[self.asks[0]])
        begin, end = marks(vocabulary, self.spec.begin)
        written = np.concatenate((begin, cut(vocabulary.target.encode(text_in(row, "target")), "target"), [end]))
        return Example(cut.processor.size(value) + len(written) - 1, len(written) - 1, TokenPair(value, written))

    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Collate:
        if self.inputs:
            return super().collator(recipe, vocabulary)
        processor = self.processor_of(vocabulary)

        def collate(rows: Sequence[TokenPair]) -> Batch:
            ids, lengths = padded([row.target[:-1] for row in rows])
            targets, _ = padded([row.target[1:] for row in rows], IGNORED)
            source = processor.signal([row.source for row in rows])
            return Batch.of(Signal(ids, lengths_or_none(ids, lengths)), targets, source)

        return collate

    def change(self, recipe: Recipe, vocabulary: Vocabulary) -> Callable[[Batch, np.random.Generator], Batch] | None:
        if self.inputs:
            return None
        processor = self.processor_of(vocabulary)

        def changed(batch: Batch, rng: np.random.Generator) -> Batch:
            assert batch.source is not None
            source, _ = processor.augmented(batch.source, rng)
            return replace(batch, signals={**batch.signals, SOURCE: source})

        return changed

    def sample(self, model: Transformer, dataset: Dataset, recipe: Recipe) -> str | None:
        assert isinstance(dataset, ExampleDataset)
        rows = dataset.records[VALIDATION][:3]
        written = self.write(model, dataset.vocabulary, recipe, rows)
        return "\n\n".join(f"→ {text}\n  ({row['target']})" for row, text in zip(rows, written, strict=True))

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        if self.inputs:
            return super().predict(model, vocabulary, recipe, rows)
        return [{"answer": text} for text in self.write(model, vocabulary, recipe, rows)]

    def write(
        self,
        model: Transformer,
        vocabulary: Vocabulary,
        recipe: Recipe,
        rows: Sequence[Mapping[str, Any]],
        cut: Truncation | None = None,
    ) -> list[str]:
        if self.inputs:
            return super().write(model, vocabulary, recipe, rows, cut)
        processor, texts = self.processor_of(vocabulary), list[str]()
        for begin in range(0, len(rows), _AT_ONCE):
            try:
                values = [processor.read(row[self.asks[0]]) for row in rows[begin : begin + _AT_ONCE]]
            except Unusable as error:
                raise UserError(str(error)) from None
            source = processor.signal(values)
            for tokens in write_from(model, vocabulary, recipe.sample, source, self.spec.begin):
                texts.append(vocabulary.target.decode(tokens, skip_special=True).strip())
        return texts

    def _format_source(self, row: Mapping[str, Any], recipe: Recipe, vocabulary: Vocabulary) -> str:
        if self.inputs:
            return super()._format_source(row, recipe, vocabulary)
        return self.processor_of(vocabulary).shown(row[self.asks[0]])

    def _looked_at(self, *_: Any) -> list[dict[str, Any]]:
        return []
