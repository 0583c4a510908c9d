"""Linear models over sparse features, fitted by convex optimisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from qkv.tasks.text_metrics import metric_library

PENALTIES = (0.06, 0.25, 1.0)
"""L2 penalties that are tried; the best on the validation split is taken."""
_SUBSAMPLE = 20_000
"""Most training rows with which the penalty is selected."""


class Fitted(NamedTuple):
    """Linear model: outputs = x W + c. weights (F, C), intercept (C)."""

    weights: np.ndarray
    intercept: np.ndarray

    def __call__(self, x: Any) -> np.ndarray:
        """Outputs (rows, C) of sparse features x (rows, F)."""
        return np.asarray(x @ self.weights) + self.intercept


def fit_labels(
    x: Any, labels: np.ndarray, unseen: Any, truth: np.ndarray, classes: int, weights: Tensor | None = None
) -> Fitted:
    """Multinomial logistic regression: logits of ``classes`` classes, for labels in 0 … classes - 1.

    Minimises Σ -w_label log softmax(x W + c)[label] + penalty / 2 · |W|², with the penalty of least loss on ``unseen``.
    weights (classes): w; None: 1.
    """
    of_labels = np.ones(classes) if weights is None else weights.numpy()

    def fit(x: Any, labels: np.ndarray, penalty: float) -> Fitted:
        solver = metric_library("sklearn.linear_model").LogisticRegression(C=1 / penalty, max_iter=300)
        solver.fit(x, labels, sample_weight=of_labels[labels])
        found, intercept = solver.coef_.T, solver.intercept_
        if len(solver.classes_) == 2:  # one logit, of the second class
            found, intercept = np.concatenate((-found, found), 1) / 2, np.append(-intercept, intercept) / 2
        whole = np.zeros((x.shape[1], classes)), np.full(classes, intercept.min() - 5.0)
        whole[0][:, solver.classes_], whole[1][solver.classes_] = found, intercept
        return Fitted(*whole)

    return _selected(fit, x, labels, lambda found: _log_loss(found(unseen), truth))


def fit_label_sets(x: Any, present: np.ndarray, unseen: Any, truth: np.ndarray) -> Fitted:
    """Logistic regressions, one per label, for ``present`` (rows, C) of 0 and 1; penalty as in ``fit_labels``."""

    def fit(x: Any, present: np.ndarray, penalty: float) -> Fitted:
        weights, intercept = np.zeros((x.shape[1], present.shape[1])), np.zeros(present.shape[1])
        for label, column in enumerate(present.T):
            count = column.sum()
            intercept[label] = np.log((count + 0.5) / (len(column) - count + 0.5))
            if 0 < count < len(column):
                solver = metric_library("sklearn.linear_model").LogisticRegression(C=1 / penalty, max_iter=300)
                solver.fit(x, column)
                weights[:, label], intercept[label] = solver.coef_[0], solver.intercept_[0]
        return Fitted(weights, intercept)

    return _selected(fit, x, present, lambda found: _binary_loss(found(unseen), truth))


def fit_values(x: Any, values: np.ndarray, unseen: Any, truth: np.ndarray) -> Fitted:
    """Ridge regression: one output. Minimises Σ (x w + c - y)² + penalty · |w|², as ``fit_labels``."""

    def fit(x: Any, values: np.ndarray, penalty: float) -> Fitted:
        solver = metric_library("sklearn.linear_model").Ridge(alpha=4 * penalty, solver="sparse_cg", tol=1e-4)
        solver.fit(x, values)
        return Fitted(solver.coef_[:, None], np.array([solver.intercept_]))

    return _selected(fit, x, values, lambda found: float(np.square(found(unseen)[:, 0] - truth).mean()))


def _selected(fit: Callable[..., Fitted], x: Any, targets: np.ndarray, loss: Callable[[Fitted], float]) -> Fitted:
    """Fit with the penalty of least loss, which is selected on at most ``_SUBSAMPLE`` evenly spaced rows."""
    rows = np.linspace(0, x.shape[0] - 1, min(x.shape[0], _SUBSAMPLE)).astype(np.int64)
    found = {penalty: fit(x[rows], targets[rows], penalty) for penalty in PENALTIES}
    best = min(found, key=lambda penalty: loss(found[penalty]))
    return found[best] if len(rows) == x.shape[0] else fit(x, targets, best)


def _binary_loss(logits: np.ndarray, present: np.ndarray) -> float:
    return float((np.logaddexp(0, logits) - logits * present).mean())


def _log_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    top = logits.max(1, keepdims=True)
    sums = np.log(np.exp(logits - top).sum(1)) + top[:, 0]
    return float((sums - logits[np.arange(len(labels)), labels]).mean())
