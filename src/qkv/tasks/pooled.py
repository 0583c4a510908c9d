"""What the tasks have in common that answer once for a whole text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from qkv.data.batch import Batch
from qkv.data.corpus import VALIDATION
from qkv.data.records.model import Role
from qkv.data.vocabulary import Vocabulary
from qkv.generation.sample import evaluating
from qkv.layers.context import Tap
from qkv.models.transformer import Transformer
from qkv.spec.recipe import Recipe
from qkv.tasks.example_task import Cut, ExampleTask, text_in
from qkv.tasks.material import ExampleMaterial, Material

TEXT = Role("text", "text", ("text", "sentence", "review", "content", "sequence", "comment", "tweet", "body", "message"))
_AT_ONCE = 64
_MOST_EXAMINED = 2000


class PooledTask(ExampleTask):
    """The text, preceded by the mark ``cls``, whose vector the pooling ``first`` takes, and one answer."""

    examines = True
    asks = ("text",)
    unknown: ClassVar[float]
    """What stands for the truth in a batch that is only read."""

    @abstractmethod
    def answers(self, outputs: Tensor, vocabulary: Vocabulary, recipe: Recipe) -> list[dict[str, Any]]:
        """An answer for each row of what the head gives."""

    @abstractmethod
    def shown(self, row: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
        """The answer beside the truth, in a few words."""

    def limits(self, recipe: Recipe) -> dict[str, int]:
        return {"text": recipe.model.context_length - 1}

    def cut(self, recipe: Recipe, vocabulary: Vocabulary) -> Cut:
        return Cut({"text": max(0, recipe.model.context_length - vocabulary.tokenizer.frame.size)})

    def sample(self, model: Transformer, material: Material, recipe: Recipe) -> str | None:
        return "\n".join(
            f"{self.shown(row, answer)}  {row['text']}" for row, answer in self.answered(model, material, VALIDATION, recipe, 5)
        )

    def answered(
        self, model: Any, material: Material, split: str, recipe: Recipe, most: int = _MOST_EXAMINED
    ) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
        """The first rows of a split, and the answers to them."""
        assert isinstance(material, ExampleMaterial)
        rows = material.records[split][:most]
        return zip(rows, self.predict(model, material.vocabulary, recipe, rows), strict=True)

    def predict(self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        cut, collate = self.cut(recipe, vocabulary), self.collator(recipe)
        found: list[dict[str, Any]] = []
        for begin in range(0, len(rows), _AT_ONCE):
            texts = [vocabulary.tokenizer.encode(text_in(row, "text")) for row in rows[begin : begin + _AT_ONCE]]
            batch = collate([(marked(ids, vocabulary, cut), self.unknown) for ids in texts]).to(model.frontend.table.device)
            with torch.inference_mode(), evaluating(model):
                answers = self.answers(outputs(model, batch).float(), vocabulary, recipe)
            found += [answer | cut.note(len(ids), "text") for answer, ids in zip(answers, texts, strict=True)]
        return found


def marked(ids: list[int], vocabulary: Vocabulary, cut: Cut) -> np.ndarray:
    """The ids of a text that fit, after the mark; between both marks where the tokenizer comes from a model that was so trained."""
    frame = vocabulary.tokenizer.frame
    return np.concatenate((frame.before, cut(ids, "text"), frame.behind)).astype(np.int64)


def outputs(model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
    """What the head gives for each text, (B, C)."""
    return model(batch.ids, lengths=batch.lengths, segments=batch.segments, tap=tap)[0]
