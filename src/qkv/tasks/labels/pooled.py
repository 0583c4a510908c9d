"""Base class for tasks with one prediction per row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.data.corpora.corpus import TRAIN, VALIDATION
from qkv.data.processors.processor import build_processor
from qkv.data.records.model import Records, Role
from qkv.data.records.values import Unusable
from qkv.data.vocabulary import Vocabulary
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.data import NO_DATA, Data
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.baselines.baselines import too_large
from qkv.tasks.baselines.feature_baselines import FeatureTable, features_of
from qkv.tasks.dataset import Dataset, Example, ExampleDataset
from qkv.tasks.example_task import ExampleTask, Reader, Rows, column, encode_rows, fit_processors, framed_by, trained
from qkv.tasks.inputs import ROWS, EncodedRow, InputReader, input_roles, row_text, text_roles
from qkv.tasks.labels.attention_pictures import attention_section
from qkv.tasks.labels.joined import JoinedTask
from qkv.tasks.named_inputs import reader_of
from qkv.tasks.task import Observed
from qkv.tokenizers.absent import NO_TEXT
from qkv.tokenizers.tokenizer import Tokenizer

SHORT = (32, 64, 128, 256)
"""Candidate context lengths of automatic recipes; longer texts are read in windows."""
_AT_ONCE = 64
_MOST_EXAMINED = 2000
_HEATED = 8
"""Number of pictures that are shown with the attention over them."""


class PooledTask(ExampleTask, JoinedTask):
    """Base class of tasks with one prediction for a row: a text, a pair of texts, or a signal such as an image.

    Texts are framed by the tokenizer's template, as in [CLS] first [SEP] second [SEP]. Without a template, ``cls``
    precedes the text (the pooling ``first`` uses its vector), and ``sep`` follows each text of a pair. Other signals
    are converted by the recipe's ``data.processor``.
    """

    evaluates = True
    target: ClassVar[Role]
    """Column of the target."""
    unknown: ClassVar[float]
    """Placeholder target for prediction."""

    def __init__(self, spec: Any):
        super().__init__(spec)
        self.reading(NO_DATA)

    def reading(self, data: Data) -> Self:
        inputs = input_roles(data)
        self.inputs, self.text = tuple(data.inputs), tuple(role.name for role in text_roles(data))
        self.roles = (*inputs, self.target)
        self.asks = tuple(role.name for role in inputs if not role.optional)
        self.may_ask = tuple(role.name for role in inputs if role.optional)
        super().reading(data)
        return self

    @abstractmethod
    def encoded(self, row: Mapping[str, Any], vocabulary: Vocabulary) -> Any:
        """Convert the target of a row to a number or an array. Raises ``UserError``."""

    def texts(self, rows: Sequence[Mapping[str, Any]]) -> list[str] | None:
        """Return the texts of rows, as linear models over n-grams read them; None if rows have no text."""
        return [row_text(row, self.text) for row in rows] if self.text else None

    def simple(self, vocabulary: Vocabulary) -> str:
        processor = vocabulary.processor
        return "ngrams" if processor is None else build_processor(processor).simple

    def simple_features(self, dataset: ExampleDataset, split: str, also: str | None = None) -> FeatureTable | None:
        return None if self.inputs else features_of(dataset, split, also)

    def targets(self, dataset: ExampleDataset, split: str) -> np.ndarray:
        return np.array([example.fields.truth for example in dataset.examples[split]])

    def size_notes(self, dataset: ExampleDataset, classes: int = 1) -> list[str]:
        """Return a note if the training texts are too large for the n-gram baseline, else an empty list."""
        texts = self.texts(dataset.fitted_on or ())
        note = "" if texts is None else too_large(texts, classes)
        return [note] if note else []

    @abstractmethod
    def answers(self, outputs: Tensor, vocabulary: Vocabulary, recipe: Recipe) -> list[dict[str, Any]]:
        """Convert each row of the head's ``outputs`` (B, C) to a mapping with a readable ``answer`` and its scores."""

    @abstractmethod
    def shown(self, row: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
        """Format the answer beside the true value of ``row`` as a short text."""

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return model.head.loss(self.row_outputs(model, batch, tap), batch.targets)

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        return self.observed(model, self.row_outputs(model, batch), batch)

    def row_outputs(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        """Compute the outputs (B, C), one row per example: the mean over its windows."""
        rows = batch.extras.get(ROWS)
        memory = None if batch.source is None else model.encode(batch.source, tap)
        if rows is None:
            return self.outputs(model, batch.input, tap, memory)
        outputs = at_least_single(self.outputs(model, batch.input, tap, memory))
        total = outputs.new_zeros(len(batch.targets), outputs.shape[1]).index_add(0, rows, outputs)
        return total / torch.bincount(rows, minlength=len(total))[:, None]

    def outputs_at_targets(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> tuple[Tensor, Tensor]:
        return self.row_outputs(model, batch, tap), batch.targets

    def labels(self, records: Records) -> tuple[str, ...]:
        """Return the class labels in order; () for a task without classes. Raises ``UserError`` for fewer than two."""
        return ()

    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        labels = self.labels(records)
        processors = fit_processors(recipe.data, records)
        tokenizer = self.tokenizer(recipe, records) if self.text else NO_TEXT
        return Vocabulary(tokenizer, tokenizer, labels, processors)

    def tokenizer(self, recipe: Recipe, records: Records) -> Tokenizer:
        """Train the tokenizer on the texts of the training split; add special tokens if it has no template."""
        columns = [name for name in self.text if name in records.splits[TRAIN][0]]
        texts = [text for name in columns for text in column(records, name)]
        return framed_by(trained(recipe.data.text_tokenizer, texts), len(columns))

    def limits(self, recipe: Recipe) -> dict[str, int]:
        return {"text": recipe.model.context_length - 1}

    def reader(self, recipe: Recipe, vocabulary: Vocabulary) -> InputReader:
        return reader_of(recipe, vocabulary)

    def change(self, recipe: Recipe, vocabulary: Vocabulary) -> Callable[[Batch, np.random.Generator], Batch] | None:
        return self.reader(recipe, vocabulary).change if self.processor is not None or self.inputs else None

    def encode(self, row: Mapping[str, Any], vocabulary: Vocabulary, reader: Reader) -> Example:
        assert isinstance(reader, InputReader)
        return reader.example(row, self.encoded(row, vocabulary))

    def usable(self, rows: Rows, vocabulary: Vocabulary, reader: Reader) -> tuple[Rows, list[Example], list[str]]:
        return encode_rows(rows, lambda row: self.encode(row, vocabulary, reader))

    def sample(self, model: Transformer, dataset: Dataset, recipe: Recipe) -> str | None:
        read = self.reader(recipe, dataset.vocabulary)
        return "\n".join(
            f"{self.shown(row, answer)}  {read.shown(row)}"
            for row, answer in self.answered(model, dataset, VALIDATION, recipe, 5)
        )

    def answered(
        self, model: Any, dataset: Dataset, split: str, recipe: Recipe, most: int = _MOST_EXAMINED
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield (row, prediction) of the first ``most`` rows of a split.

        Lazy, because with many classes all predictions together would fill the memory.
        """
        assert isinstance(dataset, ExampleDataset)
        rows = dataset.records[split][:most]
        for begin in range(0, len(rows), _AT_ONCE):
            some = rows[begin : begin + _AT_ONCE]
            yield from zip(some, self.predict(model, dataset.vocabulary, recipe, some), strict=True)

    def pictures(
        self, title: str, answers: Sequence[tuple[dict[str, Any], dict[str, Any]]], reader: InputReader
    ) -> list[dict[str, Any]]:
        """Build the report section of rows' inputs as pictures, captioned with the answers; empty without pictures."""
        entries = [
            {
                "source": reader.picture(row),
                "sound": reader.player(row),
                "caption": f"{self.shown(row, answer)} {reader.shown(row)}",
            }
            for row, answer in answers
        ]
        drawn = [entry for entry in entries if entry["source"] is not None]
        return [{"kind": "pictures", "title": title, "pictures": drawn}] if drawn else []

    def heated(self, model: Any, dataset: Dataset, split: str, recipe: Recipe) -> list[dict[str, Any]]:
        """Build the report section of the model's attention over the first pictures of a split.

        Empty if the model has no attention over positions on a grid, or if inputs have no pictures.
        """
        reader, answers = self.reader(recipe, dataset.vocabulary), self.answered(model, dataset, split, recipe, _HEATED)
        return attention_section(model, reader, [(row, self.shown(row, answer)) for row, answer in answers])

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        logits, notes = self.scored(model, vocabulary, recipe, rows)
        return [answer | note for answer, note in zip(self.answers(logits, vocabulary, recipe), notes, strict=True)]

    def scored(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[Mapping[str, Any]]
    ) -> tuple[Tensor, list[dict[str, str]]]:
        """Compute the outputs of the head for rows without targets: (outputs (rows, C), note for each prediction).

        Raises ``UserError`` for a row that cannot be encoded.
        """
        reader, collate = self.reader(recipe, vocabulary), self.collator(recipe, vocabulary)
        logits, notes = list[Tensor](), list[dict[str, str]]()
        for begin in range(0, len(rows), _AT_ONCE):
            read = [self._noted(reader, row) for row in rows[begin : begin + _AT_ONCE]]
            batch = collate([fields for fields, _ in read]).to(model.device)
            with torch.inference_mode(), evaluating(model):
                logits.append(at_least_single(self.row_outputs(model, batch)).cpu())
            notes += [note for _, note in read]
        return torch.cat(logits) if logits else torch.empty(0, 1), notes

    def _noted(self, reader: InputReader, row: Mapping[str, Any]) -> tuple[EncodedRow, dict[str, str]]:
        """Encode a row without target: return (fields, note for its prediction). Raises ``UserError``."""
        try:
            return reader.noted(row, self.unknown)
        except Unusable as error:
            raise UserError(str(error)) from None
