"""What the tasks have in common that answer once for a whole text."""

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
from qkv.generation.sample import evaluating
from qkv.layers.tap import Tap
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import UserError
from qkv.spec.recipe import Recipe
from qkv.tasks.example_task import Cut, ExampleTask, column, framed_by, text_in, trained
from qkv.tasks.material import Example, ExampleMaterial, Material
from qkv.tokenizers.tokenizer import Tokenizer

TEXT = Role("text", "text", ("text", "sentence", "review", "content", "sequence", "comment", "tweet", "body", "message"))
PAIR = Role("pair", "text", ("pair", "hypothesis", "sentence2", "question2"), optional=True)
"""A second text, where the answer is about two."""
_AT_ONCE = 64
_MOST_EXAMINED = 2000


class PooledTask(ExampleTask):
    """The text, or a pair of texts, and one answer.

    Round them stands what the tokenizer's template says, as in [CLS] first [SEP] second [SEP]; else the mark ``cls`` stands before, whose
    vector the pooling ``first`` takes, and for pairs ``sep`` behind each.
    """

    examines = True
    asks = ("text",)
    may_ask = ("pair",)
    unknown: ClassVar[float]
    """What stands for the truth in a batch that is only read."""

    @abstractmethod
    def answers(self, outputs: Tensor, vocabulary: Vocabulary, recipe: Recipe) -> list[dict[str, Any]]:
        """An answer for each row of what the head gives."""

    @abstractmethod
    def shown(self, row: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
        """The answer beside the truth, in a few words."""

    def tokenizer(self, recipe: Recipe, records: Records) -> Tokenizer:
        """Of the training texts, with marks where its own template has none."""
        pairs = "pair" in records.splits[TRAIN][0]
        texts = [*column(records, "text"), *(column(records, "pair") if pairs else ())]
        return framed_by(trained(recipe.data.tokenizer, texts), 2 if pairs else 1)

    def limits(self, recipe: Recipe) -> dict[str, int]:
        return {"text": recipe.model.context_length - 1}

    def cut(self, recipe: Recipe, vocabulary: Vocabulary) -> Cut:
        """``pair``: of two texts together."""
        most, tokenizer = recipe.model.context_length, vocabulary.tokenizer
        room = {"text": max(0, most - tokenizer.frame.size), "pair": max(0, most - tokenizer.pair_frame.size)}
        return Cut(room, recipe.model.types_read)

    def sample(self, model: Transformer, material: Material, recipe: Recipe) -> str | None:
        return "\n".join(f"{self.shown(row, answer)}  {told(row)}" for row, answer in self.answered(model, material, VALIDATION, recipe, 5))

    def answered(
        self, model: Any, material: Material, split: str, recipe: Recipe, most: int = _MOST_EXAMINED
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """The first rows of a split, and the answers to them, made while they are asked for: those of many classes fill the memory."""
        assert isinstance(material, ExampleMaterial)
        rows = material.records[split][:most]
        for begin in range(0, len(rows), _AT_ONCE):
            some = rows[begin : begin + _AT_ONCE]
            yield from zip(some, self.predict(model, material.vocabulary, recipe, some), strict=True)

    def predict(self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        cut, collate = self.cut(recipe, vocabulary), self.collator(recipe)
        found: list[dict[str, Any]] = []
        for begin in range(0, len(rows), _AT_ONCE):
            texts = [_encoded(row, vocabulary.tokenizer, recipe) for row in rows[begin : begin + _AT_ONCE]]
            read = [(*marked(some, vocabulary.tokenizer, cut), self.unknown) for some in texts]
            batch = collate(read).to(model.device)
            with torch.inference_mode(), evaluating(model):
                answers = self.answers(at_least_single(outputs(model, batch)), vocabulary, recipe)
            found += [answer | cut.note(sum(map(len, some)), _ROLES[len(some)]) for answer, some in zip(answers, texts, strict=True)]
        return found


_ROLES = {1: "text", 2: "pair"}
"""What so many texts are called where they are cut."""


def _encoded(row: Mapping[str, Any], tokenizer: Tokenizer, recipe: Recipe) -> list[list[int]]:
    """The ids of the text, and those of the second one if there is one. Raises ``UserError`` if it was there in training and is missing."""
    if "pair" in recipe.data.columns and row.get("pair") is None:
        raise UserError("the model has learned from pairs of texts, and the second text, 'pair', is missing")
    return [tokenizer.encode(text_in(row, role)) for role in _parts(row)]


def _parts(row: Mapping[str, Any]) -> list[str]:
    return [role for role in ("text", "pair") if role == "text" or row.get(role) is not None]


def told(row: Mapping[str, Any]) -> str:
    """The text of a row as people see it, or both."""
    return " | ".join(row[role] for role in _parts(row))


def example_of(row: Mapping[str, Any], vocabulary: Vocabulary, cut: Cut, truth: Any) -> Example:
    """The row as ids, types and the truth."""
    tokenizer = vocabulary.tokenizer
    ids, types = marked([tokenizer.encode(row[role]) for role in _parts(row)], tokenizer, cut)
    return Example(len(ids), 1, (ids, types, truth))


def marked(texts: Sequence[list[int]], tokenizer: Tokenizer, cut: Cut) -> tuple[np.ndarray, np.ndarray]:
    """The ids of one text or two that fit, within what stands round them; and their types, none where the model reads none."""
    if len(texts) == 1:
        found = tokenizer.frame.around(cut(texts[0], "text").tolist())
    else:
        found = tokenizer.pair_frame.around(*cut.together(texts[0], texts[1], "pair"))
    read = cut.framed(found)
    return np.array(read.ids, np.int64), np.array(read.types, np.int64)


def outputs(model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
    """What the head gives for each text, (B, C)."""
    return model(batch.input, tap=tap)[0]
