"""Base class for sequence-level prediction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from qkv.data.batch import Batch
from qkv.data.corpus import TRAIN, VALIDATION
from qkv.data.ngrams import bag_of
from qkv.data.padding import lengths_or_none, padded
from qkv.data.records.model import Records, Role
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import UserError
from qkv.spec.recipe import Recipe
from qkv.tasks.dataset import Dataset, Example, ExampleDataset
from qkv.tasks.example_task import ExampleTask, Truncation, column, framed_by, text_in, trained, types_or_none
from qkv.tasks.linear import Fitted
from qkv.tasks.task import Observed
from qkv.tokenizers.framing import Framed
from qkv.tokenizers.tokenizer import Tokenizer

TEXT = Role(
    "text", "text", ("text", "sentence", "review", "content", "sequence", "comment", "tweet", "body", "message")
)
PAIR = Role("pair", "text", ("pair", "hypothesis", "sentence2", "question2"), optional=True)
"""Optional second text, for predictions about pairs."""
SHORT = (32, 64, 128, 256)
"""Candidate context lengths of automatic recipes; longer texts are read in windows."""
_AT_ONCE = 64
_MOST_EXAMINED = 2000


class PooledTask(ExampleTask):
    """Base class of tasks with one prediction for a text or a pair of texts.

    Texts are framed by the tokenizer's template, as in [CLS] first [SEP] second [SEP]; without one, ``cls`` precedes
    the text (the vector used by the pooling ``first``), and ``sep`` follows each text of a pair.
    """

    evaluates = True
    asks = ("text",)
    may_ask = ("pair",)
    unknown: ClassVar[float]
    """Placeholder target for prediction."""

    @abstractmethod
    def baselines(self, dataset: ExampleDataset, split: str) -> dict[str, float]:
        """Metrics of simple models on ``split``, fitted to the training split; empty if there is none."""

    @abstractmethod
    def answers(self, outputs: Tensor, vocabulary: Vocabulary, recipe: Recipe) -> list[dict[str, Any]]:
        """Convert each row of the head's ``outputs`` (B, C) to a mapping with a readable ``answer`` and its scores."""

    @abstractmethod
    def shown(self, row: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
        """Format the answer beside the true value of ``row`` as a short text."""

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return model.head.loss(outputs(model, batch, tap), batch.targets)

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        return self.observed(model, outputs(model, batch), batch)

    @abstractmethod
    def observed(self, model: Transformer, found: Tensor, batch: Batch) -> Observed:
        """Loss and data for metrics of a batch with the outputs ``found`` (B, C)."""

    @abstractmethod
    def fit_linear(self, x: Any, targets: np.ndarray, unseen: Any, truth: np.ndarray, num_outputs: int) -> Fitted:
        """Fit a linear model of ``num_outputs`` outputs to sparse features x (rows, F) and the targets of the examples.

        unseen, truth: features and targets of the validation split, which select penalty and scales.
        """

    def labels(self, records: Records) -> tuple[str, ...]:
        """Labels of the classes in order; empty for a task without classes. Raises ``UserError`` for fewer than two."""
        return ()

    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        tokenizer = self.tokenizer(recipe, records)
        return Vocabulary(tokenizer, tokenizer, self.labels(records))

    def tokenizer(self, recipe: Recipe, records: Records) -> Tokenizer:
        """Tokenizer trained on the texts of the training split, with special tokens added if it has no template."""
        pairs = "pair" in records.splits[TRAIN][0]
        texts = [*column(records, "text"), *(column(records, "pair") if pairs else ())]
        return framed_by(trained(recipe.data.tokenizer, texts), 2 if pairs else 1)

    def limits(self, recipe: Recipe) -> dict[str, int]:
        return {"text": recipe.model.context_length - 1}

    def cut(self, recipe: Recipe, vocabulary: Vocabulary) -> TextReader:
        """Reader of single texts (role ``text``) and of both texts of a pair together (role ``pair``)."""
        return TextReader(recipe, vocabulary.tokenizer)

    def sample(self, model: Transformer, dataset: Dataset, recipe: Recipe) -> str | None:
        return "\n".join(
            f"{self.shown(row, answer)}  {told(row)}"
            for row, answer in self.answered(model, dataset, VALIDATION, recipe, 5)
        )

    def answered(
        self, model: Any, dataset: Dataset, split: str, recipe: Recipe, most: int = _MOST_EXAMINED
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Iterate over (row, prediction) of the first ``most`` rows of a split.

        Generated lazily: with many classes, all predictions would fill the memory.
        """
        assert isinstance(dataset, ExampleDataset)
        rows = dataset.records[split][:most]
        for begin in range(0, len(rows), _AT_ONCE):
            some = rows[begin : begin + _AT_ONCE]
            yield from zip(some, self.predict(model, dataset.vocabulary, recipe, some), strict=True)

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        cut, collate = self.cut(recipe, vocabulary), self.collator(recipe)
        found: list[dict[str, Any]] = []
        for begin in range(0, len(rows), _AT_ONCE):
            texts = [_checked(row, recipe) for row in rows[begin : begin + _AT_ONCE]]
            read = [cut.read(some, self.unknown) for some in texts]
            batch = collate([parts for parts, _ in read]).to(model.device)
            with torch.inference_mode(), evaluating(model):
                answers = self.answers(at_least_single(outputs(model, batch)), vocabulary, recipe)
            found += [
                answer | cut.note(length, _ROLES[len(some)])
                for answer, some, (_, length) in zip(answers, texts, read, strict=True)
            ]
        return found


_ROLES = {1: "text", 2: "pair"}
"""Roles of one text and of two in messages about truncation."""


def _checked(row: Mapping[str, Any], recipe: Recipe) -> list[str]:
    """Text of ``row``, and its second text if present.

    Raises ``UserError`` if the model was trained on pairs and the second text is missing.
    """
    if "pair" in recipe.data.columns and row.get("pair") is None:
        raise UserError("the model has learned from pairs of texts, and the second text, 'pair', is missing")
    return texts_of(row)


def texts_of(row: Mapping[str, Any]) -> list[str]:
    """Text of ``row``, and its second text if present."""
    return [text_in(row, role) for role in _parts(row)]


def _parts(row: Mapping[str, Any]) -> list[str]:
    return [role for role in ("text", "pair") if role == "text" or row.get(role) is not None]


def told(row: Mapping[str, Any]) -> str:
    """Text of a row, or both texts of a pair, for display."""
    return " | ".join(row[role] for role in _parts(row))


class TextReader(Truncation):
    """Conversion of the text or pair of texts of a row to examples, truncated to the model's context length.

    A text that is longer becomes up to ``task.windows`` windows, each framed, which overlap by an eighth.
    """

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer):
        most, self.tokenizer = recipe.model.context_length, tokenizer
        room = {"text": max(0, most - tokenizer.frame.size), "pair": max(0, most - tokenizer.pair_frame.size)}
        self.windows, self.wide = recipe.task.windows, recipe.model.wide  # type: ignore[attr-defined]
        self.room = room["text"]
        super().__init__({**room, "text": room["text"] + (self.windows - 1) * self._stride}, recipe.model.types_read)

    @property
    def _stride(self) -> int:
        return max(1, self.room - self.room // 8)

    def example(self, texts: Sequence[str], truth: Any) -> Example:
        """Encode the texts of one row, with the target ``truth``, to an example."""
        parts, _ = self.read(texts, truth)
        return Example(len(parts[0]), 1, parts)

    def read(self, texts: Sequence[str], truth: Any) -> tuple[tuple[Any, ...], int]:
        """(parts of the example of one row, number of its tokens before truncation).

        Parts: framed ids and token types (empty if the model reads none) of all windows, truth; then, if there are
        several windows or a wide path, the length of each window; for a wide path, ids and counts of the features.
        """
        tokens = [self.tokenizer.encode(text) for text in texts]
        length = sum(map(len, tokens))
        read = [self.framed(found) for found in self._framed(tokens)]
        ids, types = (
            np.concatenate([np.array(part, np.int64) for part in side])
            for side in zip(*((found.ids, found.types) for found in read), strict=True)
        )
        if len(read) == 1 and self.wide is None:
            return (ids, types, truth), length
        bag = () if self.wide is None else bag_of(self.wide, texts)
        return (ids, types, truth, np.array([len(found.ids) for found in read]), *bag), length

    def _framed(self, tokens: Sequence[list[int]]) -> list[Framed]:
        if len(tokens) > 1:
            return [self.tokenizer.pair_frame.around(*self.together(tokens[0], tokens[1], "pair"))]
        kept = self(tokens[0], "text").tolist()
        starts = range(0, max(1, len(kept) - self.room + self._stride), self._stride)
        return [self.tokenizer.frame.around(kept[start : start + self.room]) for start in starts]


def signal_of(rows: Sequence[tuple[Any, ...]]) -> tuple[Signal, Tensor | None]:
    """(signal of the parts of several examples, index of the row of each window; None if each row is one window)."""
    counts = [(*row[3:4], np.array([len(row[0])]))[0] for row in rows]
    ends = [np.cumsum(each)[:-1] for each in counts]
    pieces = [part for row, end in zip(rows, ends, strict=True) for part in np.split(row[0], end)]
    ids, lengths = padded(pieces)
    types = [part for row, end in zip(rows, ends, strict=True) for part in _split(row[1], end)]
    owners = None
    if len(pieces) > len(rows):
        owners = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([len(each) for each in counts]))
    signal = Signal(ids, lengths_or_none(ids, lengths), types=types_or_none(types))
    if len(rows[0]) > 4:
        bag, _ = padded([row[4] for row in rows])
        occurring, _ = padded([row[5] for row in rows], dtype=np.float32)
        signal = replace(signal, bag=bag, counts=occurring)
        if owners is not None:
            signal = replace(signal, bag=bag[owners], counts=occurring[owners])
    return signal, owners


def _split(types: np.ndarray, ends: np.ndarray) -> list[np.ndarray]:
    """Token types of each window of a row; empty if the model reads none."""
    return np.split(types, ends) if len(types) else [types] * (len(ends) + 1)


ROWS = "rows"
"""Name of the extra of a batch that holds the row of each window."""


def batch_of(rows: Sequence[tuple[Any, ...]], targets: Tensor, count: int | None = None) -> Batch:
    """Batch of the parts of several examples with ``targets`` of the rows."""
    signal, owners = signal_of(rows)
    return Batch.of(signal, targets, None, count, **({} if owners is None else {ROWS: owners}))


def outputs(model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
    """Outputs of the model, (B, C), one row per text: the mean over its windows."""
    rows = batch.extras.get(ROWS)
    if rows is None:
        return model(batch.input, tap=tap)[0]
    found = at_least_single(model(batch.input, tap=tap)[0])
    total = found.new_zeros(len(batch.targets), found.shape[1]).index_add(0, rows, found)
    return total / torch.bincount(rows, minlength=len(total))[:, None]
