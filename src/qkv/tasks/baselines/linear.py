"""Linear models over sparse or dense features, fitted by convex optimisation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from qkv.tasks.metrics.text_metrics import metric_library

PENALTIES = (0.06, 0.25, 1.0)
"""L2 penalties that are tried."""
POWERS = (0.0, 0.5, 1.0)
"""Powers of the features' scales that are tried; 0: no scale."""
PLAIN = 1.0
"""L2 penalty of the plain fit. ``by_scales`` and ``by_penalty`` reject fits with more errors than it on unseen rows."""
STANDARDISED = (0.25, PLAIN, 10.0, 100.0, 1000.0)
"""L2 penalties that are tried with standardised dense features."""
NORMALISED = (1.0, 0.1, 0.03, 0.01)
"""L2 penalties that are tried with rows whose mean squared norm is 1."""
FOLDS = 4
"""Number of folds of the training rows for selecting a penalty by cross-validation."""
_CROSSED = 3000
"""Maximum number of training rows for cross-validation."""
_DENSE = 2_000_000
"""Maximum number of dense feature values, rows times features, with which ``by_penalty`` selects a penalty."""
_ITERATIONS = 100
_SUBSAMPLE = 20_000
"""Maximum number of rows for selecting penalty and power, with fewer than ``_LARGE`` weights; else ``_ROWS``."""
_LARGE = 1_000_000
_ROWS = 4096
"""Maximum number of rows for fitting one weight per row, not per feature, if features are ``_WIDE`` times as many."""
_WIDE = 4


class Fitted(NamedTuple):
    """Linear model: outputs = x W + c. weights (F, C), intercept (C).

    again: function (features, targets) -> model of the same kind, fitted to these rows with the selected penalty and
    power of the scales.
    """

    weights: np.ndarray
    intercept: np.ndarray
    again: Callable[[Any, np.ndarray], Fitted] | None = None

    def __call__(self, x: Any) -> np.ndarray:
        """Compute the outputs (rows, C) of features x (rows, F), dense or sparse."""
        return np.asarray(x @ self.weights) + self.intercept


Fit = Callable[[Any, np.ndarray, float, int], Fitted]
"""Function that fits a linear model: (features, targets, penalty, iterations)."""


class Solver(NamedTuple):
    """Kind of linear model, such as logistic regression.

    fit: function that fits it.   judged: function (outputs, targets) -> (loss, error rate), which compares fits; the
    error rate is always 0 if only the loss counts.   groups: function from targets to booleans (rows, G), for
    ``scales``; True if a row belongs to a group.
    """

    fit: Fit
    judged: Callable[[np.ndarray, np.ndarray], tuple[float, float]]
    groups: Callable[[np.ndarray], np.ndarray]


Selection = Callable[[Solver, Any, np.ndarray, Any, np.ndarray], Fitted]
"""Function that selects penalty and scales, and fits: (solver, x, targets, unseen features, their targets)."""


def by_scales(solver: Solver, x: Any, targets: np.ndarray, unseen: Any, truth: np.ndarray) -> Fitted:
    """Fit to sparse features; select the penalty and the power of the scales by the loss on the unseen rows.

    First the penalty is selected at the middle power, then the largest power is tried with that penalty. A fit that
    makes more errors than the fit with penalty 1 and power 0 is rejected. If there are many rows, the selection uses
    evenly spaced rows.
    """
    groups = solver.groups(targets)
    most = _SUBSAMPLE if x.shape[1] * groups.shape[1] < _LARGE else _ROWS
    rows = np.linspace(0, x.shape[0] - 1, min(x.shape[0], most)).astype(np.int64)
    plain, middle = (PLAIN, POWERS[0]), POWERS[len(POWERS) // 2]
    fits: dict[tuple[float, float], Fitted] = {}
    scores: dict[tuple[float, float], tuple[float, float]] = {}

    def try_out(power: float, penalties: Sequence[float]) -> None:
        design = _Design(x[rows], groups[rows], power)
        for penalty in penalties:
            fits[penalty, power] = design.fit(solver.fit, targets[rows], penalty, _ITERATIONS)
            scores[penalty, power] = solver.judged(fits[penalty, power](unseen), truth)

    try_out(middle, PENALTIES)
    penalty, _ = min(scores, key=lambda each: scores[each][0])
    try_out(POWERS[-1], [penalty])
    try_out(plain[1], [plain[0]])
    best = min((each for each in scores if scores[each][1] <= scores[plain][1]), key=lambda each: scores[each][0])

    def again(x: Any, targets: np.ndarray) -> Fitted:
        return _Design(x, solver.groups(targets), best[1]).fit(solver.fit, targets, best[0], _ITERATIONS)

    return (fits[best] if len(rows) == x.shape[0] else again(x, targets))._replace(again=again)


def by_penalty(solver: Solver, x: Any, targets: np.ndarray, unseen: Any, truth: np.ndarray) -> Fitted:
    """Fit to standardised features; select the penalty by the loss on the unseen rows.

    A fit that makes more errors than the plain fit is rejected. If there are many features and rows, the selection
    uses evenly spaced rows.
    """
    rows = np.linspace(0, len(x) - 1, min(len(x), max(1, _DENSE // x.shape[1]))).astype(np.int64)
    design = _Design(x[rows], targets[rows, None], 0.0)
    fits = {penalty: design.fit(solver.fit, targets[rows], penalty, 10 * _ITERATIONS) for penalty in STANDARDISED}
    scores = {penalty: solver.judged(each(unseen), truth) for penalty, each in fits.items()}
    candidates = [penalty for penalty in STANDARDISED if scores[penalty][1] <= scores[PLAIN][1]]
    best = min(candidates, key=lambda penalty: scores[penalty][0])

    def again(x: Any, targets: np.ndarray) -> Fitted:
        return _Design(x, targets[:, None], 0.0).fit(solver.fit, targets, best, 10 * _ITERATIONS)

    return (fits[best] if len(rows) == len(x) else again(x, targets))._replace(again=again)


class Crossed:
    """Selection by cross-validation of the penalty and of the block of features.

    The block is the ``first`` columns, the other columns, or all columns. The pair with the least loss over the folds
    of the training rows is selected in the first call; later calls reuse it. The unseen rows have no influence.
    """

    def __init__(self, first: int):
        self.first = first
        self.chosen: tuple[float, slice] | None = None

    def __call__(self, solver: Solver, x: Any, targets: np.ndarray, unseen: Any, truth: np.ndarray) -> Fitted:
        if self.chosen is None:
            self.chosen = self._choice(solver, x, targets)
        penalty, block = self.chosen

        def again(x: Any, targets: np.ndarray) -> Fitted:
            fit = solver.fit(x[:, block], targets, penalty, _ITERATIONS)
            weights = np.zeros((x.shape[1], fit.weights.shape[1]))
            weights[block] = fit.weights
            return Fitted(weights, fit.intercept)

        return again(x, targets)._replace(again=again)

    def _choice(self, solver: Solver, x: Any, targets: np.ndarray) -> tuple[float, slice]:
        """Return (penalty, block) with the lowest cross-validation loss, on evenly spaced rows if there are many."""
        rows = np.linspace(0, x.shape[0] - 1, min(x.shape[0], _CROSSED)).astype(np.int64)
        x, targets = x[rows], targets[rows]
        fold = _folds(targets)
        blocks = [slice(0, x.shape[1]), slice(0, self.first), slice(self.first, x.shape[1])]
        losses: dict[tuple[float, int], float] = {}
        for number, block in enumerate(blocks):
            if block.start < block.stop:
                for part in range(FOLDS):
                    validation, rest = x[fold == part][:, block], x[fold != part][:, block]
                    for penalty in NORMALISED:
                        fit = solver.fit(rest, targets[fold != part], penalty, _ITERATIONS)
                        loss = solver.judged(fit(validation), targets[fold == part])[0] * (fold == part).sum()
                        losses[penalty, number] = losses.get((penalty, number), 0.0) + loss
        penalty, number = min(losses, key=lambda each: losses[each])
        return penalty, blocks[number]


def _folds(targets: np.ndarray) -> np.ndarray:
    """Assign a fold to each row, stratified by target: every fold has nearly the same distribution of targets."""
    order = np.random.default_rng(0).permutation(len(targets))
    size = targets if targets.ndim == 1 else targets @ np.arange(1, targets.shape[1] + 1)
    fold = np.empty(len(targets), np.int64)
    fold[order[np.argsort(size[order], kind="stable")]] = np.arange(len(targets)) % FOLDS
    return fold


def label_solver(classes: int, weights: Tensor | None = None) -> Solver:
    """Return the solver of multinomial logistic regression: logits of ``classes`` classes, labels in 0 … classes - 1.

    Minimises Σ -w_label log softmax(x W + c)[label] + penalty / 2 · Σ_f |W_f|² / s_f², with the ``scales`` s of the
    features. weights (classes): w; None: 1.
    """

    def judged(logits: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
        return _log_loss(logits, truth), float((logits.argmax(1) != truth).mean())

    def groups(labels: np.ndarray) -> np.ndarray:
        return labels[:, None] == np.unique(labels)

    return Solver(_of_labels(classes, np.ones(classes) if weights is None else weights.numpy()), judged, groups)


def label_set_solver() -> Solver:
    """Return the solver of one logistic regression per label; targets (rows, C) of 0 and 1; judged by loss alone."""

    def fit(x: Any, present: np.ndarray, penalty: float, iterations: int) -> Fitted:
        weights, intercept = np.zeros((x.shape[1], present.shape[1])), np.zeros(present.shape[1])
        for label, column in enumerate(present.T):
            count = column.sum()
            intercept[label] = np.log((count + 0.5) / (len(column) - count + 0.5))
            if 0 < count < len(column):
                solver = _logistic(x, column, penalty, iterations)
                weights[:, label], intercept[label] = solver.coef_[0], solver.intercept_[0]
        return Fitted(weights, intercept)

    def judged(logits: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
        return _binary_loss(logits, truth), 0.0

    return Solver(fit, judged, lambda present: present > 0)


def value_solver() -> Solver:
    """Return the solver of ridge regression with one output.

    Minimises Σ (x w + c - y)² + 4 penalty · Σ_f w_f² / s_f². The ``scales`` s compare two groups of rows: those with
    values above the median and the others.
    """

    def judged(outputs: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
        return float(np.square(outputs[:, 0] - truth).mean()), 0.0

    def groups(values: np.ndarray) -> np.ndarray:
        return (values > np.median(values))[:, None]

    return Solver(_ridge, judged, groups)


def plain_labels(x: Any, labels: np.ndarray, classes: int) -> Fitted:
    """Fit multinomial logistic regression with penalty 1 and no scales, see ``label_solver``."""
    fit = _of_labels(classes, np.ones(classes))
    return _Design(x, labels[:, None], 0.0).fit(fit, labels, PLAIN, 10 * _ITERATIONS)


def plain_values(x: Any, values: np.ndarray) -> Fitted:
    """Fit ridge regression with a coefficient of 1 on the squared weights and no scales, see ``value_solver``."""
    return _Design(x, values[:, None], 0.0).fit(_ridge, values, 0.25, _ITERATIONS)


def _of_labels(classes: int, of_labels: np.ndarray) -> Fit:
    """Return the function that fits logistic regression; ``of_labels`` (classes): weight of each class in the loss."""

    def fit(x: Any, labels: np.ndarray, penalty: float, iterations: int) -> Fitted:
        solver = _logistic(x, labels, penalty, iterations, of_labels[labels])
        coefficients, intercept = solver.coef_.T, solver.intercept_
        if len(solver.classes_) == 2:  # scikit-learn fits one logit, for the second class
            coefficients, intercept = (
                np.concatenate((-coefficients, coefficients), 1) / 2,
                np.append(-intercept, intercept) / 2,
            )
        whole = np.zeros((x.shape[1], classes)), np.full(classes, intercept.min() - 5.0)
        whole[0][:, solver.classes_], whole[1][solver.classes_] = coefficients, intercept
        return Fitted(*whole)

    return fit


def _logistic(x: Any, labels: np.ndarray, penalty: float, iterations: int, weights: np.ndarray | None = None) -> Any:
    """Fit logistic regression by scikit-learn; a fit that has not converged after ``iterations`` is used as it is."""
    solver = metric_library("sklearn.linear_model").LogisticRegression(C=1 / penalty, max_iter=iterations)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", metric_library("sklearn.exceptions").ConvergenceWarning)
        return solver.fit(x, labels, sample_weight=weights)


def _ridge(x: Any, values: np.ndarray, penalty: float, iterations: int) -> Fitted:
    solver = metric_library("sklearn.linear_model").Ridge(alpha=4 * penalty, tol=1e-4)
    solver.fit(x, values)
    return Fitted(solver.coef_[:, None], np.array([solver.intercept_]))


def fit_with(solver: Solver, x: Any, targets: np.ndarray, penalty: float) -> Fitted:
    """Fit to features x (rows, F) with one penalty for all features."""
    return _Design(x, targets[:, None], 0.0).fit(solver.fit, targets, penalty, _ITERATIONS)


def scales(x: Any, groups: np.ndarray, power: float) -> np.ndarray:
    """Compute feature scales (F), as in naive Bayes: large if a feature's frequency differs between groups of rows.

    s_f = r_f^power, divided by its root mean square over f. r_f² = Σ over groups g of ln²(p_fg / p_f¬g). p_fg: share of
    feature f in the counts of all features over the rows of group g; ¬g: over the other rows. The count of a feature is
    one plus the number of rows in which it occurs. For two classes, Wang & Manning (2012) scale by the signed
    logarithm; the sign makes no difference to a linear model with an L2 penalty.

    x: array or sparse matrix (rows, F). groups: booleans (rows, G).
    """
    occurs, squares = (x != 0).astype(np.float64), np.zeros(x.shape[1])
    of_all = np.asarray(occurs.sum(0)).ravel()
    for group in groups.T:
        inside = np.asarray(group.astype(np.float64) @ occurs).ravel()
        one, other = 1 + inside, 1 + of_all - inside
        squares += np.log((one / one.sum()) / (other / other.sum())) ** 2
    sizes = squares ** (power / 2)
    return sizes / np.sqrt(np.square(sizes).mean()) if squares.any() else np.ones(x.shape[1])


class _Design:
    """Features times their scales. With few rows and many features, the dual problem is solved: one weight per row.

    The weights that minimise loss plus penalty have the form W = X^T A (representer theorem). With X X^T = L L^T and
    U = L^T A, the outputs X W are L U and the penalty |W|² is |U|²: a problem with as many features as rows.
    """

    def __init__(self, x: Any, groups: np.ndarray, power: float):
        from scipy.sparse import csr_matrix, issparse

        self.sizes = scales(x, groups, power) if power else np.ones(x.shape[1])
        plain = power == 0 and not issparse(x)
        self.x = x if plain else csr_matrix(x).multiply(self.sizes).tocsr()
        rows, features = x.shape
        self.root = _root(self.x) if rows <= _ROWS and features >= _WIDE * rows else None

    def fit(self, fit: Fit, targets: np.ndarray, penalty: float, iterations: int) -> Fitted:
        """Fit a linear model; the returned weights apply to the unscaled features."""
        if self.root is None:
            solution = fit(self.x, targets, penalty, iterations)
            weights = solution.weights
        else:
            from scipy.linalg import solve_triangular

            solution = fit(self.root, targets, penalty, iterations)
            weights = self.x.T @ solve_triangular(self.root, solution.weights, lower=True, trans=1)
        return Fitted(weights * self.sizes[:, None], solution.intercept)


def _root(x: Any) -> np.ndarray:
    """Compute the lower triangular L (rows, rows) with L L^T = X X^T + ε I.

    Of a sparse X, columns that are non-zero in many rows are multiplied as a dense matrix, the others as a sparse one.
    """
    if isinstance(x, np.ndarray):
        gram = x @ x.T
    else:
        often = np.asarray((x != 0).sum(0)).ravel() > x.shape[0] / 16
        dense, rest = x[:, often].toarray(), x[:, ~often]
        gram = dense @ dense.T + (rest @ rest.T).toarray()
    return np.linalg.cholesky(gram + 1e-6 * max(1e-6, gram.trace() / len(gram)) * np.eye(len(gram)))


def _binary_loss(logits: np.ndarray, present: np.ndarray) -> float:
    return float((np.logaddexp(0, logits) - logits * present).mean())


def _log_loss(logits: np.ndarray, labels: np.ndarray) -> float:
    top = logits.max(1, keepdims=True)
    sums = np.log(np.exp(logits - top).sum(1)) + top[:, 0]
    return float((sums - logits[np.arange(len(labels)), labels]).mean())
