"""Classification of texts and other signals with several labels each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.data.records.model import Records, Role
from qkv.data.vocabulary import Vocabulary
from qkv.models.transformer import Transformer
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import MultiLabel
from qkv.system.errors import UserError
from qkv.tasks.baselines.baselines import ngrams, too_large
from qkv.tasks.baselines.linear import Solver, label_set_solver
from qkv.tasks.dataset import Dataset, ExampleDataset
from qkv.tasks.example_task import Collate
from qkv.tasks.inputs import EncodedRow
from qkv.tasks.labels.pooled import SHORT, PooledTask
from qkv.tasks.metrics.text_metrics import metric_library
from qkv.tasks.task import Defaults, Evaluation, Observed, Scale, Totals, lowercase

_SHOWN = 12
_MOST_LABELS = 100
"""Maximum number of labels in the table of the evaluation; the most frequent are shown."""


@implements(MultiLabel)
class MultiLabelTask(PooledTask):
    """Classification with several labels per text or pair of texts; loss -Σ_c log p(label c present or absent | text).

    Labels are independent given the text: p_c = σ(z_c). Labels with a probability of at least ``threshold`` are
    predicted. The labels of all splits are classes: a label that is missing in training cannot be learned, but its
    errors are counted.
    """

    loss_unit = "nats an example"
    unknown = 0.0
    metric = "micro_f1"
    automatic = Defaults(("text", "pair"), lengths=SHORT, target="labels", tokenizer=lowercase)
    target = Role(
        "labels", "labels", ("labels", "tags", "topics", "categories", "genres", "classes", "keywords", "label")
    )

    def labels(self, records: Records) -> tuple[str, ...]:
        names = {label for rows in records.splits.values() for row in rows for label in row["labels"]}
        if len(names) < 2:
            raise UserError(
                f"data.source: the rows of {records.name!r} have {'one label' if names else 'no labels'} in all "
                f"({', '.join(map(repr, names))}), but at least two are needed; check data.label_separator"
            )
        return tuple(sorted(names))

    def encoded(self, row: Mapping[str, Any], vocabulary: Vocabulary) -> np.ndarray:
        present = np.zeros(len(vocabulary.labels), np.float32)
        for label in row["labels"]:
            if label not in vocabulary.classes:
                raise UserError(f"data: the label {label!r} is not among the labels of the run")
            present[vocabulary.classes[label]] = 1
        return present

    def unknown_label(self, row: Mapping[str, Any], vocabulary: Vocabulary) -> str | None:
        return next((label for label in row["labels"] if label not in vocabulary.classes), None)

    def solver(self, num_outputs: int) -> Solver:
        return label_set_solver()

    def collator(self, recipe: Recipe, vocabulary: Vocabulary) -> Collate:
        read = self.reader(recipe, vocabulary)

        def collate(rows: Sequence[EncodedRow]) -> Batch:
            targets = np.stack([np.atleast_1d(np.asarray(row.truth, np.float32)) for row in rows])
            return read.batch(rows, torch.from_numpy(targets), len(rows))

        return collate

    def observed(self, model: Transformer, outputs: Tensor, batch: Batch) -> Observed:
        chosen = outputs.double().sigmoid() >= self.spec.threshold
        pairs = list(zip(map(_classes, batch.targets), map(_classes, chosen), strict=True))
        return Observed(model.head.loss(outputs, batch.targets), batch.num_targets, pairs)

    def figures(self, seen: Totals, scale: Scale) -> dict[str, float]:
        return {"loss": seen.loss / max(1, seen.count), **label_set_scores(seen.outcomes)}

    def evaluate(self, model: Any, dataset: Dataset, split: str, seen: Totals, recipe: Recipe) -> Evaluation:
        assert isinstance(dataset, ExampleDataset)
        labels = dataset.vocabulary.labels
        figures = {**self.figures(seen, dataset.scale(split)), **self.baselines(dataset, split)}
        columns = ["label", "examples", "recall %", "precision %", "F1 %"]
        by_label = {"kind": "examples", "title": "Labels", "columns": columns, "rows": _by_label(labels, seen.outcomes)}
        wrong = self._mistakes(model, dataset, split, recipe)
        columns = [self.asks[0], "answer", "truth"]
        sections = [by_label, {"kind": "examples", "title": "Mistakes", "columns": columns, "rows": wrong}]
        sections = [*(sections if wrong else sections[:1]), *self.heated(model, dataset, split, recipe)]
        return Evaluation(figures, sections, self.size_notes(dataset, len(labels)))

    def baselines(self, dataset: ExampleDataset, split: str) -> dict[str, float]:
        train_rows, rows = dataset.fitted_on or [], dataset.records[split]
        texts, texts_of_split = self.texts(train_rows), self.texts(rows)
        if texts is None or texts_of_split is None:
            return {}
        sets = [[set(row["labels"]) for row in some] for some in (train_rows, rows)]
        return _baseline(texts, sets[0], texts_of_split, sets[1], dataset.vocabulary.labels)

    def _mistakes(self, model: Any, dataset: ExampleDataset, split: str, recipe: Recipe) -> list[list[Any]]:
        answered = self.answered(model, dataset, split, recipe)
        wrong = (pair for pair in answered if set(pair[0]["labels"]) != set(pair[1]["labels"]))
        read = self.reader(recipe, dataset.vocabulary)
        return [
            [read.shown(row), answer["answer"], ", ".join(row["labels"])]
            for (row, answer), _ in zip(wrong, range(_SHOWN), strict=False)
        ]

    def shown(self, row: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
        return f"{answer['answer']} (truth: {', '.join(row['labels']) or NONE})"

    def answers(self, outputs: Tensor, vocabulary: Vocabulary, recipe: Recipe) -> list[dict[str, Any]]:
        """Return per row the labels above the threshold, most probable first, and the probability of every label."""
        answers: list[dict[str, Any]] = []
        for chances in outputs.double().sigmoid().tolist():
            each = dict(sorted(zip(vocabulary.labels, chances, strict=False), key=lambda item: -item[1]))
            labels = [label for label, chance in each.items() if chance >= self.spec.threshold]
            answers.append({"answer": ", ".join(labels) or NONE, "labels": labels, "probabilities": each})
        return answers


NONE = "(none)"
"""Answer for a text without labels."""
Sets = Sequence[tuple[Sequence[int], Sequence[int]]]
"""(true classes, predicted classes) of each row."""


def _classes(row: Tensor) -> list[int]:
    return row.nonzero()[:, 0].tolist()


def label_set_scores(pairs: Sets) -> dict[str, float]:
    """Compute micro and macro F1 and subset accuracy of (true, predicted) sets of classes, in per cent.

    F1 = 2 TP / (2 TP + FP + FN): micro from sums over all classes, macro as the mean over the classes that occur as
    truth or prediction. Subset accuracy: share of rows whose predicted set equals the true set.
    """
    if not pairs:
        return dict.fromkeys(("micro_f1", "macro_f1", "subset_accuracy"), float("nan"))
    hits, true, predicted = _counts(pairs)
    either = true + predicted
    return {
        "micro_f1": 100 * 2 * float(hits.sum()) / max(1.0, float(either.sum())),
        "macro_f1": 100 * float((2 * hits[either > 0] / either[either > 0]).mean()) if either.any() else float("nan"),
        "subset_accuracy": 100 * sum(set(a) == set(b) for a, b in pairs) / len(pairs),
    }


def _counts(pairs: Sets) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count (true positives, true examples, predicted examples) per class, up to the last class that occurs."""
    true, predicted = ([c for pair in pairs for c in pair[side]] for side in (0, 1))
    both = [c for a, b in pairs for c in set(a) & set(b)]
    size = 1 + max([*true, *predicted], default=0)
    hits, is_true, is_found = (np.bincount(np.array(c, np.int64), minlength=size) for c in (both, true, predicted))
    return hits, is_true, is_found


def _by_label(labels: Sequence[str], pairs: Sets) -> list[list[Any]]:
    """Build table rows of the most frequent labels: label, examples, recall, precision and F1 in per cent."""
    hits, true, predicted = _counts(pairs)
    order = np.argsort(-true, kind="stable")[:_MOST_LABELS].tolist()
    parts = [((hits[i], true[i]), (hits[i], predicted[i]), (2 * hits[i], true[i] + predicted[i])) for i in order]
    return [
        [labels[i], int(true[i]), *(100 * float(a / b) if b else None for a, b in shares)]
        for i, shares in zip(order, parts, strict=True)
    ]


def _baseline(
    texts: Sequence[str],
    truth: Sequence[set[str]],
    unseen: Sequence[str],
    other: Sequence[set[str]],
    labels: Sequence[str],
) -> dict[str, float]:
    """Compute the F1 of a baseline: one logistic regression per label over TF-IDF of n-grams.

    It is fitted to ``texts`` with the label sets ``truth``, and scored on the texts ``unseen`` with the label sets
    ``other``. Empty without scikit-learn or if the data is too large.
    """
    if not texts or too_large(texts, len(labels)):
        return {}
    try:
        features = ngrams()
        x, new = features.fit_transform(texts), features.transform(unseen)
        answers = [_one_against_rest(x, np.array([label in each for each in truth]), new) for label in labels]
    except (UserError, ValueError):  # no text has an n-gram
        return {}
    pairs = [
        ([i for i, label in enumerate(labels) if label in each], [i for i, answer in enumerate(answers) if answer[row]])
        for row, each in enumerate(other)
    ]
    scores = label_set_scores(pairs)
    return {f"{name}_of_ngrams": scores[name] for name in ("micro_f1", "macro_f1")}


def _one_against_rest(x: Any, present: np.ndarray, unseen: Any) -> np.ndarray:
    """Predict one label for ``unseen``; if all training rows have it, or none, predict the same for all rows."""
    if present.all() or not present.any():
        return np.full(unseen.shape[0], bool(present.all()))
    regression = metric_library("sklearn.linear_model").LogisticRegression(max_iter=1000)
    return regression.fit(x, present).predict(unseen)
