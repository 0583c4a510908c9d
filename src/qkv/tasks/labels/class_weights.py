"""Weights of labels in the loss, so that rare labels count as much as frequent ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.data.batching.batch import IGNORED
from qkv.ops.at_least_single import at_least_single
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError, nearest
from qkv.tasks.metrics.label_metrics import Pairs

LOW = 50.0
"""Recall, in per cent, below which a rare label is reported."""
FEWEST = 5
"""Minimum number of examples of a label in the evaluated split for its recall to be reported."""
_MOST = 5


def balanced(counts: Mapping[str, int]) -> dict[str, float]:
    """Compute the weight w_c = n / (k · n_c) of each of the k labels, where n_c of n targets have the label c.

    These are the weights of ``class_weight="balanced"`` in scikit-learn. Their mean over the targets is 1.
    """
    total = sum(counts.values())
    return {label: total / (len(counts) * count) for label, count in counts.items()}


def with_class_weights(recipe: Recipe, targets: Sequence[str], labels: Sequence[str]) -> Recipe:
    """Return a copy of the recipe whose task has a weight for each of ``labels``; unchanged without class weights.

    ``targets``: labels of all training targets. Raises ``UserError`` for a weight of an unknown label.
    """
    task: Any = recipe.task
    if task.class_weights == "none":
        return recipe
    counts = Counter(targets)
    by_label = balanced(counts) if task.class_weights == "balanced" else task.class_weights
    unknown = next((label for label in by_label if label not in labels), None)
    if unknown is not None:
        raise UserError(f"task.class_weights: the data has no label {unknown!r}; {nearest(unknown, labels)}")
    weights = {label: float(f"{by_label.get(label, 1.0):.6g}") for label in labels}
    return recipe.changed(task=task.changed(class_weights=weights))


def weights_of(task: Any, order: Callable[[str], Any] | None = None) -> Tensor | None:
    """Return the class weights (C), for the labels sorted by ``order``; None without class weights.

    Raises ``UserError`` if the training data has not been read yet.
    """
    if task.class_weights == "none":
        return None
    if task.class_weights == "balanced":
        raise UserError("task.class_weights: 'balanced' weights are not known before the data is opened")
    return torch.tensor([task.class_weights[label] for label in sorted(task.class_weights, key=order)])


def label_loss(head: Any, logits: Tensor, targets: Tensor, smoothing: float, weights: Tensor | None) -> Tensor:
    """Compute Σ_i w(y_i) · CE(z_i, y_i) over targets y with logits z; without ``weights``, return ``head.loss``.

    logits (…, C), targets (…), weights (C).
    """
    if weights is None:
        return head.loss(logits, targets, smoothing)
    flat, classes = at_least_single(logits).flatten(0, -2), targets.flatten()
    losses = F.cross_entropy(flat, classes, reduction="none", label_smoothing=smoothing, ignore_index=IGNORED)
    return losses @ weights.to(losses)[classes.clamp(min=0)]


def rare_labels_note(
    task: Any, labels: Sequence[str], pairs: Pairs, counts: Mapping[str, int], weighs: bool = True
) -> list[str]:
    """Return at most one note on rare labels with low recall among (true, predicted) ``pairs``, and a remedy.

    ``counts``: training targets per label. A label is rare if it has less than half the average number per label.
    ``weighs``: True if the loss of the model's head can have class weights.
    """
    true, hits = Counter(y for y, _ in pairs), Counter(y for y, predicted in pairs if y == predicted)
    share = sum(counts.values()) / max(1, 2 * len(counts))
    recalls = {
        labels[y]: 100 * hits[y] / n for y, n in true.items() if n >= FEWEST and 0 < counts.get(labels[y], 0) < share
    }
    low = sorted((recall, label) for label, recall in recalls.items() if recall < LOW)
    if not low:
        return []
    named = ", ".join(f"{label!r} {recall:.0f} % of {true[labels.index(label)]:,}" for recall, label in low[:_MOST])
    more = f" and {len(low) - _MOST:,} more" if len(low) > _MOST else ""
    setting = "task.class_weights=balanced" + " with model.head=tokens" * (not weighs)
    advice = f"; {setting} gives them more weight" if task.class_weights == "none" else ""
    return [f"rare labels with low recall: {named}{more}{advice}"]
