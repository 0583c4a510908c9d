"""Linear models over sparse features: scales of the features, selection of penalty and scales."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression, Ridge

from qkv.tasks.baselines import linear
from qkv.tasks.baselines.linear import by_scales, label_solver, scales, value_solver


def test_a_class_that_is_missing_in_training_is_improbable() -> None:
    x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]])
    found = by_scales(label_solver(3), x, np.array([0, 2, 0, 2]), x, np.array([0, 2, 0, 2]))
    assert found(x).argmax(1).tolist() == [0, 2, 0, 2]


def test_ridge_takes_penalty_and_scales_of_least_error_on_the_other_rows() -> None:
    draw = np.random.default_rng(0)
    x, true = draw.normal(size=(40, 5)), np.array([1.0, -2.0, 0.0, 3.0, 0.5])
    y, unseen = x @ true + 0.1 * draw.normal(size=40), draw.normal(size=(20, 5))
    found = by_scales(value_solver(), x, y, unseen, unseen @ true)  # features are in every row: all scales are equal
    fits = [Ridge(alpha=4 * penalty).fit(x, y).predict(unseen) for penalty in (0.06, 0.25, 1.0)]
    best = min(fits, key=lambda fit: np.square(fit - unseen @ true).mean())
    np.testing.assert_allclose(found(unseen)[:, 0], best, atol=1e-2)


def test_scales_are_those_of_a_loop_over_features_and_classes() -> None:
    rows = [({0: 2.0, 1: 1.0}, 0), ({0: 1.0, 2: 0.5}, 0), ({1: 3.0, 2: 1.0}, 1), ({2: 1.0, 3: 1.0}, 2)]
    x = np.array([[row.get(f, 0.0) for f in range(5)] for row, _ in rows])
    labels = np.array([label for _, label in rows])

    def share(f: int, chosen: list[dict[int, float]]) -> float:
        return (1 + sum(f in row for row in chosen)) / sum(1 + sum(g in row for row in chosen) for g in range(5))

    wanted = []
    for f in range(5):
        ratios = [
            math.log(share(f, [r for r, y in rows if y == c]) / share(f, [r for r, y in rows if y != c]))
            for c in range(3)
        ]
        wanted.append(math.sqrt(sum(ratio**2 for ratio in ratios)) ** 0.5)
    mean = math.sqrt(sum(each**2 for each in wanted) / 5)
    found = scales(csr_matrix(x), labels[:, None] == np.arange(3), 0.5)
    np.testing.assert_allclose(found, [each / mean for each in wanted], rtol=1e-12)


def test_scales_help_where_few_of_many_features_tell_the_label() -> None:
    draw = np.random.default_rng(1)
    labels = draw.integers(0, 2, 1500)
    noise = draw.random((1500, 500)) < 0.3
    signal = draw.random((1500, 10)) < np.where(labels[:, None] == 1, 0.25, 0.05)
    x = csr_matrix(np.concatenate((noise, signal), 1).astype(float))
    found = by_scales(label_solver(2), x[:300], labels[:300], x[300:500], labels[300:500])
    fits = [LogisticRegression(C=c, max_iter=300).fit(x[:300], labels[:300]) for c in (1, 4, 16)]
    plain = max(fit.score(x[500:], labels[500:]) for fit in fits)
    assert (found(x[500:]).argmax(1) == labels[500:]).mean() >= plain + 0.05


def test_no_fit_is_taken_that_is_less_accurate_than_the_plain_one() -> None:
    for seed in range(8):
        draw = np.random.default_rng(seed)
        x = (draw.random((120, 30)) < 0.2) * draw.random((120, 30))
        labels = (x[:, :3].sum(1) + 0.2 * draw.normal(size=120) > 0.3).astype(int)
        found = by_scales(label_solver(2), x[:60], labels[:60], x[60:], labels[60:])
        plain = LogisticRegression(max_iter=300).fit(x[:60], labels[:60])
        assert (found(x[60:]).argmax(1) == labels[60:]).mean() >= plain.score(x[60:], labels[60:])


@pytest.mark.parametrize("classes", [2, 3])
def test_a_problem_of_few_rows_is_solved_as_one_of_many_features(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(3)
    x = csr_matrix((draw.random((60, 400)) < draw.random(400) ** 3) * draw.random((60, 400)))
    labels = draw.integers(0, classes, 60)
    args = (label_solver(classes), x[:40], labels[:40], x[40:], labels[40:])
    short = by_scales(*args)
    monkeypatch.setattr(linear, "_ROWS", 0)
    long = by_scales(*args)
    np.testing.assert_allclose(short(x), long(x), atol=2e-2)
    np.testing.assert_allclose(short.weights, long.weights, atol=2e-2)
    assert np.abs(long.weights).max() > 0.2
