"""Base class for tasks whose examples are images or sounds without a target column; the model may read a label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from qkv.data.batching.batch import Batch
from qkv.data.processors.processor import Processor, build_processor
from qkv.data.records.model import Records, Role
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.spec.data import NO_DATA, Data
from qkv.spec.processors import Processor as ProcessorSpec
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.dataset import Example
from qkv.tasks.example_task import ExampleTask, Reader, Rows, fit_processors
from qkv.tasks.inputs import EncodedRow, SignalReader, input_roles


class SignalTask(ExampleTask):
    """Base class of tasks whose examples are images or sounds, encoded by the recipe's processor."""

    evaluates = True
    label: ClassVar[Role | None] = None
    """Column of the label that the model may read; None for tasks without labels."""

    def __init__(self, spec: Any):
        super().__init__(spec)
        self.reading(NO_DATA)

    def reading(self, data: Data) -> Self:
        inputs = input_roles(data) if data.processors else ()
        self.roles = (*inputs, self.label) if self.label is not None and self.labelled(data.processor) else inputs
        self.asks = tuple(role.name for role in inputs)
        super().reading(data)
        return self

    def labelled(self, processor: ProcessorSpec | None) -> bool:
        """Return True if the model reads the label of an image."""
        return False

    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        return Vocabulary(processors=fit_processors(recipe.data, records))

    def limits(self, recipe: Recipe) -> dict[str, int]:
        return {}

    def reader(self, recipe: Recipe, vocabulary: Vocabulary) -> SignalReader:
        return SignalReader(processor_of(vocabulary))

    def usable(self, rows: Rows, vocabulary: Vocabulary, reader: Reader) -> tuple[Rows, list[Example], list[str]]:
        assert isinstance(reader, SignalReader)
        usable_rows, examples, bad = list[dict[str, Any]](), list[Example](), list[str]()
        encoded = reader.processor.encode_all([row[self.roles[0].name] for row in rows])
        for row, value in zip(rows, encoded, strict=True):
            if isinstance(value, Unusable):
                bad.append(str(value))
                continue
            size = reader.processor.size(value)
            examples.append(Example(size, self.targets(value), EncodedRow(value, self.index(row, vocabulary))))
            usable_rows.append(row)
        return usable_rows, examples, bad

    def examples(self, rows: Sequence[Mapping[str, Any]], vocabulary: Vocabulary, reader: Any) -> list[Example]:
        _, examples, bad = self.usable([dict(row) for row in rows], vocabulary, reader)
        if bad:
            raise UserError(bad[0])
        return examples

    def targets(self, encoded: np.ndarray) -> int:
        """Return the number of targets of an encoded image; by default its number of values."""
        return encoded.size

    def index(self, row: Mapping[str, Any], vocabulary: Vocabulary) -> int:
        """Return the index of the label of a row; 0 without labels. Raises ``UserError`` for an unknown label."""
        if self.label is None or self.label.name not in row or not vocabulary.labels:
            return 0
        label = row[self.label.name]
        if label not in vocabulary.classes:
            raise UserError(f"data: the label {label!r} occurs only in held-out data; remove such rows")
        return vocabulary.classes[label]

    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Callable[[Sequence[EncodedRow]], Batch]:
        reader = self.reader(recipe, vocabulary)
        return lambda rows: self.batch(reader, rows)

    def batch(self, reader: SignalReader, rows: Sequence[EncodedRow]) -> Batch:
        """Build a batch of several examples."""
        raise NotImplementedError


def processor_of(vocabulary: Vocabulary) -> Processor:
    """Return the processor of a run's images. Raises ``UserError`` if the run has none."""
    processor = vocabulary.processor
    if processor is None:
        raise UserError("the run has no processor of images; its processors.json is missing or belongs to another run")
    return build_processor(processor)
