"""Classification of texts, pairs of texts and other signals."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.data.records.model import Records, Role
from qkv.data.records.values import natural
from qkv.data.vocabulary import Vocabulary
from qkv.layers.tap import Tap
from qkv.models.transformer import Transformer
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import Classification
from qkv.system.errors import UserError
from qkv.tasks.baselines.baselines import ngram_accuracy
from qkv.tasks.baselines.feature_baselines import feature_accuracy
from qkv.tasks.baselines.input_features import input_accuracies
from qkv.tasks.baselines.linear import Solver, label_solver
from qkv.tasks.dataset import Dataset, ExampleDataset
from qkv.tasks.example_task import Collate, column
from qkv.tasks.inputs import PARTNERS, SHARE
from qkv.tasks.labels.class_weights import label_loss, rare_labels_note, weights_of, with_class_weights
from qkv.tasks.labels.pooled import SHORT, PooledTask
from qkv.tasks.metrics.label_metrics import agreement, confusion
from qkv.tasks.task import Defaults, Evaluation, Observed, Scale, Totals, lowercase

LABEL = Role(
    "label", "label", ("label", "class", "category", "stars", "sentiment", "target", "rating", "location", "y")
)
_SHOWN = 12


@implements(Classification)
class ClassificationTask(PooledTask):
    """Classification of a text, a pair of texts or another signal; loss -log p(label | input)."""

    loss_unit = "nats an example"
    unknown = 0
    metric = "accuracy"
    automatic = Defaults(
        ("text", "pair"),
        lengths=SHORT,
        target="label",
        tokenizer=lowercase,
        fields={"label_smoothing": 0.1},
        best="accuracy",
    )
    target = LABEL

    @cached_property
    def weights(self) -> Tensor | None:
        """Class weights (C) in the loss; None for no weights."""
        return weights_of(self.spec, natural)

    def completed(self, recipe: Recipe, records: Records) -> Recipe:
        labels = column(records, "label")
        return with_class_weights(recipe, labels, sorted(set(labels), key=natural))

    def labels(self, records: Records) -> tuple[str, ...]:
        labels = tuple(sorted(set(column(records, "label")), key=natural))
        if len(labels) < 2:
            raise UserError(
                f"data.source: every example of {records.name!r} has the label {next(iter(labels))!r}, "
                "so there are no classes to distinguish"
            )
        return labels

    def encoded(self, row: Mapping[str, Any], vocabulary: Vocabulary) -> int:
        if row["label"] not in vocabulary.classes:
            raise UserError(
                f"data: the label {row['label']!r} occurs only in held-out data, so it cannot be learned; "
                "remove such rows"
            )
        return vocabulary.classes[row["label"]]

    def unknown_label(self, row: Mapping[str, Any], vocabulary: Vocabulary) -> str | None:
        return None if row["label"] in vocabulary.classes else str(row["label"])

    def solver(self, num_outputs: int) -> Solver:
        return label_solver(num_outputs, self.weights)

    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Collate:
        read = self.reader(recipe, vocabulary)
        return lambda rows: read.batch(rows, torch.tensor([row.truth for row in rows]))

    def summed_loss(self, model: Transformer, batch: Batch, tap: Tap | None = None) -> Tensor:
        logits = self.row_outputs(model, batch, tap)
        targets, partner_targets = batch.targets, batch.extras.get(PARTNERS)
        loss = label_loss(model.head, logits, targets, self.spec.label_smoothing, self.weights)
        if partner_targets is None:
            return loss
        share = batch.extras[SHARE]
        mixed = label_loss(model.head, logits, partner_targets, self.spec.label_smoothing, self.weights)
        return share * loss + (1 - share) * mixed

    def class_logits(self, model: Transformer, batch: Batch) -> Tensor:
        return self.row_outputs(model, batch)

    def observed(self, model: Transformer, logits: Tensor, batch: Batch) -> Observed:
        pairs = list(zip(batch.targets.tolist(), logits.argmax(-1).tolist(), strict=True))
        return Observed(model.head.loss(logits, batch.targets), batch.num_targets, pairs)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        return {"loss": seen.loss / max(1, seen.count), **agreement(seen.outcomes)}

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, ExampleDataset)
        labels = dataset.vocabulary.labels
        mistakes = self._mistakes(model, dataset, split, recipe)
        figures = {**self.figures(seen, dataset.scale(split)), **self.baselines(dataset, split)}
        truth = [row["label"] for row in dataset.fitted_on or ()]
        notes = [*self.size_notes(dataset, len(labels))]
        notes += rare_labels_note(self.spec, labels, seen.outcomes, Counter(truth))
        sections = [confusion(labels, seen.outcomes), *mistakes]
        if self.processor is not None:
            first = list(self.answered(model, dataset, split, recipe, _SHOWN))
            sections += self.pictures("Answers", first, self.reader(recipe, dataset.vocabulary))
            sections += self.heated(model, dataset, split, recipe)
        return Evaluation(figures, sections, notes)

    def baselines(self, dataset: ExampleDataset, split: str) -> dict[str, float]:
        """Compute accuracies of baselines on ``split``, in %.

        Baselines are the most frequent training label, and a linear model over n-grams or over features of the
        processor.
        """
        if not dataset.fitted_on:
            return {}
        train_rows, rows = dataset.fitted_on, dataset.records[split]
        labels, truth = ([row["label"] for row in some] for some in (train_rows, rows))
        usual = Counter(labels).most_common(1)[0][0]
        accuracies = {"accuracy_of_most_frequent_label": 100 * truth.count(usual) / max(1, len(truth))}
        if self.processor is not None:
            return accuracies | feature_accuracy(dataset, split, labels, truth)
        accuracies |= input_accuracies(dataset, split, labels, truth)
        texts, texts_of_split = self.texts(train_rows), self.texts(rows)
        linear = (
            None if texts is None or texts_of_split is None else ngram_accuracy(texts, labels, texts_of_split, truth)
        )
        return accuracies if linear is None else {**accuracies, "accuracy_of_ngrams": linear}

    def _mistakes(self, model: Any, dataset: ExampleDataset, split: str, recipe: Recipe) -> list[dict[str, Any]]:
        """Build the section of the most confident mistakes, as pictures if inputs have any; empty without mistakes."""
        answered = self.answered(model, dataset, split, recipe)
        wrong = ((row, answer) for row, answer in answered if answer["answer"] != row["label"])
        worst = heapq.nlargest(_SHOWN, wrong, key=lambda pair: pair[1]["probability"])
        reader, title = self.reader(recipe, dataset.vocabulary), "Most confident mistakes"
        if drawn := self.pictures(title, worst, reader):
            return drawn
        rows = [[reader.shown(row), a["answer"], row["label"], f"{a['probability']:.3f}"] for row, a in worst]
        columns = [self.asks[0], "answer", "truth", "probability"]
        return [{"kind": "examples", "title": title, "columns": columns, "rows": rows}] if rows else []

    def shown(self, row: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
        return f"{answer['answer']} ({answer['probability']:.2f}; truth: {row['label']})"

    def answers(self, outputs: Tensor, vocabulary: Vocabulary, recipe: Recipe) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        probabilities = (outputs.double() / self.temperature).softmax(-1)
        for chances, best in zip(probabilities.tolist(), probabilities.argmax(-1).tolist(), strict=True):
            each = dict(zip(vocabulary.labels, chances, strict=True))
            answers.append({"answer": vocabulary.labels[best], "probability": chances[best], "probabilities": each})
        return answers
