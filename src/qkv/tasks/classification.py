"""One label for a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.data.batch import Batch
from qkv.data.corpus import TRAIN
from qkv.data.records.model import Records, Role
from qkv.data.vocabulary import Vocabulary
from qkv.generation.sample import evaluating
from qkv.layers.context import Tap
from qkv.models.transformer import Transformer
from qkv.spec.errors import UserError
from qkv.spec.recipe import Recipe
from qkv.spec.tasks import Classification
from qkv.tasks.baselines import bag_of_words_accuracy
from qkv.tasks.example_task import Collate, Cut, ExampleTask, column, lengths_or_none, padded, trained
from qkv.tasks.label_metrics import agreement, confusion
from qkv.tasks.material import Example, ExampleMaterial, Material
from qkv.tasks.task import Exam, Observed, Scale, Totals, register

_SHOWN = 12


@register(Classification)
class ClassificationTask(ExampleTask):
    """-log p(label | text), the text preceded by the mark ``cls``, whose vector the pooling ``first`` takes."""

    loss_unit = "nats an example"
    examines = True
    asks = ("text",)
    roles = (
        Role("text", "text", ("text", "sentence", "review", "content", "sequence", "comment", "tweet", "body", "message")),
        Role("label", "label", ("label", "class", "category", "stars", "sentiment", "target", "rating", "location", "y")),
    )

    def vocabulary(self, recipe: Recipe, records: Records) -> Vocabulary:
        tokenizer = trained(recipe.data.tokenizer, column(records, "text"), ("cls",))
        labels = tuple(sorted(set(column(records, "label")), key=_natural))
        if len(labels) < 2:
            raise UserError(
                f"data.source: every example of {records.name!r} has the label {next(iter(labels))!r}, and there is nothing to tell apart"
            )
        return Vocabulary(tokenizer, tokenizer, labels)

    def limits(self, recipe: Recipe) -> dict[str, int]:
        return {"text": recipe.model.context_length - 1}

    def encode(self, row: Mapping[str, Any], vocabulary: Vocabulary, cut: Cut) -> Example:
        ids = _read(row["text"], vocabulary, cut)
        if row["label"] not in vocabulary.labels:
            raise UserError(
                f"data: the label {row['label']!r} stands in the held-out part alone, and nothing can be learned of it; leave such rows out"
            )
        return Example(len(ids), 1, (ids, vocabulary.labels.index(row["label"])))

    def collator(self, recipe: Recipe) -> Collate:
        return _collated

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        return _nats(_logits(model, batch, tap), batch.targets, self.spec.label_smoothing)

    def observe(self, model: Transformer, batch: Batch) -> Observed:
        logits = _logits(model, batch)
        pairs = list(zip(batch.targets.tolist(), logits.argmax(-1).tolist(), strict=True))
        return Observed(_nats(logits, batch.targets, 0.0), batch.num_targets, pairs)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        return {"loss": seen.loss / max(1, seen.count), **agreement(seen.outcomes)}

    def examine(self, model: Any, material: Material, split: str, seen: Totals, recipe: Recipe) -> Exam:
        assert isinstance(material, ExampleMaterial)
        labels = material.vocabulary.labels
        wrong = self._mistakes(model, material, split, recipe)
        table = {
            "kind": "examples",
            "title": "Where it is wrong and most certain",
            "columns": ["text", "answer", "truth", "probability"],
            "rows": wrong,
        }
        figures = {**self.figures(seen, material.scale(split)), **_baselines(material, split)}
        return Exam(figures, [confusion(labels, seen.outcomes), *([table] if wrong else [])])

    def _mistakes(self, model: Any, material: ExampleMaterial, split: str, recipe: Recipe) -> list[list[Any]]:
        rows = material.records[split][:2000]
        answers = self.predict(model, material.vocabulary, recipe, rows)
        wrong = [(a["probability"], row, a) for row, a in zip(rows, answers, strict=True) if a["answer"] != row["label"]]
        wrong.sort(key=lambda item: -item[0])
        return [[row["text"], a["answer"], row["label"], f"{p:.3f}"] for p, row, a in wrong[:_SHOWN]]

    def sample(self, model: Transformer, material: Material, recipe: Recipe) -> str | None:
        assert isinstance(material, ExampleMaterial)
        rows = material.records["validation"][:5]
        answers = self.predict(model, material.vocabulary, recipe, rows)
        return "\n".join(
            f"{a['answer']} ({a['probability']:.2f}; truth: {row['label']})  {row['text']}" for row, a in zip(rows, answers, strict=True)
        )

    def predict(self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        cut, found = Cut(self.limits(recipe)), []
        for begin in range(0, len(rows), 64):
            texts = [_read(row["text"], vocabulary, cut) for row in rows[begin : begin + 64]]
            batch = _collated([(ids, 0) for ids in texts]).to(model.frontend.table.device)
            with torch.inference_mode(), evaluating(model):
                found += _logits(model, batch).float().softmax(-1).tolist()
        answers = []
        for row, chances in zip(rows, found, strict=True):
            best = int(np.argmax(chances))
            answer: dict[str, Any] = {"answer": vocabulary.labels[best], "probability": chances[best]}
            answer["probabilities"] = dict(zip(vocabulary.labels, chances, strict=True))
            length = len(vocabulary.tokenizer.encode(row["text"]))
            if length > cut.limits["text"]:
                answer["note"] = f"the input has {length} tokens and the model reads {cut.limits['text']}; the rest was not read"
            answers.append(answer)
        return answers


def _baselines(material: ExampleMaterial, split: str) -> dict[str, float]:
    """What needs no model, or hardly one: the most frequent label, and logistic regression over words where scikit-learn is at hand."""
    (texts, labels), (unseen, truth) = (
        ([row["text"] for row in material.records[part]], [row["label"] for row in material.records[part]]) for part in (TRAIN, split)
    )
    usual = Counter(labels).most_common(1)[0][0]
    found = {"accuracy_of_most_frequent_label": 100 * truth.count(usual) / max(1, len(truth))}
    words = bag_of_words_accuracy(texts, labels, unseen, truth)
    return found if words is None else {**found, "accuracy_of_bag_of_words": words}


def _read(text: str, vocabulary: Vocabulary, cut: Cut) -> np.ndarray:
    mark = vocabulary.tokenizer.special("cls")
    assert mark is not None
    return np.concatenate(([mark], cut(vocabulary.tokenizer.encode(text), "text")))


def _collated(rows: Sequence[tuple[np.ndarray, int]]) -> Batch:
    ids, lengths = padded([ids for ids, _ in rows])
    return Batch(ids, torch.tensor([label for _, label in rows]), lengths_or_none(ids, lengths))


def _logits(model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
    """(B, C)."""
    return model(batch.ids, lengths=batch.lengths, segments=batch.segments, tap=tap)[0]


def _nats(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(logits.float(), targets, reduction="sum", label_smoothing=smoothing)


def _natural(label: str) -> tuple[int, float, str]:
    """Numbers by value, then words by letters."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label
