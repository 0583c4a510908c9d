"""Base class for sequence-level prediction."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from qkv.data.batch import Batch
from qkv.data.corpus import TRAIN, VALIDATION
from qkv.data.records.model import Records, Role
from qkv.data.vocabulary import Vocabulary
from qkv.layers.tap import Tap
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import UserError
from qkv.spec.recipe import Recipe
from qkv.tasks.dataset import Dataset, Example, ExampleDataset
from qkv.tasks.example_task import ExampleTask, Truncation, column, framed_by, text_in, trained
from qkv.tokenizers.tokenizer import Tokenizer

TEXT = Role(
    "text", "text", ("text", "sentence", "review", "content", "sequence", "comment", "tweet", "body", "message")
)
PAIR = Role("pair", "text", ("pair", "hypothesis", "sentence2", "question2"), optional=True)
"""Optional second text, for predictions about pairs."""
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
    def answers(self, outputs: Tensor, vocabulary: Vocabulary, recipe: Recipe) -> list[dict[str, Any]]:
        """Convert each row of the head's ``outputs`` (B, C) to a mapping with a readable ``answer`` and its scores."""

    @abstractmethod
    def shown(self, row: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
        """Format the answer beside the true value of ``row`` as a short text."""

    def tokenizer(self, recipe: Recipe, records: Records) -> Tokenizer:
        """Tokenizer trained on the texts of the training split, with special tokens added if it has no template."""
        pairs = "pair" in records.splits[TRAIN][0]
        texts = [*column(records, "text"), *(column(records, "pair") if pairs else ())]
        return framed_by(trained(recipe.data.tokenizer, texts), 2 if pairs else 1)

    def limits(self, recipe: Recipe) -> dict[str, int]:
        return {"text": recipe.model.context_length - 1}

    def cut(self, recipe: Recipe, vocabulary: Vocabulary) -> Truncation:
        """Truncation of single texts (role ``text``) and of both texts of a pair together (role ``pair``)."""
        most, tokenizer = recipe.model.context_length, vocabulary.tokenizer
        room = {"text": max(0, most - tokenizer.frame.size), "pair": max(0, most - tokenizer.pair_frame.size)}
        return Truncation(room, recipe.model.types_read)

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
            texts = [_encoded(row, vocabulary.tokenizer, recipe) for row in rows[begin : begin + _AT_ONCE]]
            read = [(*marked(some, vocabulary.tokenizer, cut), self.unknown) for some in texts]
            batch = collate(read).to(model.device)
            with torch.inference_mode(), evaluating(model):
                answers = self.answers(at_least_single(outputs(model, batch)), vocabulary, recipe)
            found += [
                answer | cut.note(sum(map(len, some)), _ROLES[len(some)])
                for answer, some in zip(answers, texts, strict=True)
            ]
        return found


_ROLES = {1: "text", 2: "pair"}
"""Roles of one text and of two in messages about truncation."""


def _encoded(row: Mapping[str, Any], tokenizer: Tokenizer, recipe: Recipe) -> list[list[int]]:
    """Token ids of the text of ``row``, and of its second text if present.

    Raises ``UserError`` if the model was trained on pairs and the second text is missing.
    """
    if "pair" in recipe.data.columns and row.get("pair") is None:
        raise UserError("the model has learned from pairs of texts, and the second text, 'pair', is missing")
    return [tokenizer.encode(text_in(row, role)) for role in _parts(row)]


def _parts(row: Mapping[str, Any]) -> list[str]:
    return [role for role in ("text", "pair") if role == "text" or row.get(role) is not None]


def told(row: Mapping[str, Any]) -> str:
    """Text of a row, or both texts of a pair, for display."""
    return " | ".join(row[role] for role in _parts(row))


def example_of(row: Mapping[str, Any], vocabulary: Vocabulary, cut: Truncation, truth: Any) -> Example:
    """Encode a row to an example with the target ``truth``; ``cut`` truncates the texts."""
    tokenizer = vocabulary.tokenizer
    ids, types = marked([tokenizer.encode(row[role]) for role in _parts(row)], tokenizer, cut)
    return Example(len(ids), 1, (ids, types, truth))


def marked(texts: Sequence[list[int]], tokenizer: Tokenizer, cut: Truncation) -> tuple[np.ndarray, np.ndarray]:
    """(framed ids, token types) of one text or a pair, truncated; types are empty if the model reads none."""
    if len(texts) == 1:
        found = tokenizer.frame.around(cut(texts[0], "text").tolist())
    else:
        found = tokenizer.pair_frame.around(*cut.together(texts[0], texts[1], "pair"))
    read = cut.framed(found)
    return np.array(read.ids, np.int64), np.array(read.types, np.int64)


def outputs(model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
    """Outputs of the head, (B, C), one row per text."""
    return model(batch.input, tap=tap)[0]
