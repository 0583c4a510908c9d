"""The statistic of these tests sees a wrong distribution, and leaves a right one alone."""

from __future__ import annotations

import numpy as np
import pytest
from tests.tasks.objectives.chance import assert_share, chi_square


def test_right_draws_score_like_a_normal() -> None:
    generator = np.random.default_rng(0)
    scores = [chi_square(generator.multinomial(1000, [0.2] * 5), [0.2] * 5) for _ in range(2000)]
    assert abs(np.mean(scores)) < 0.1
    assert abs(np.std(scores) - 1) < 0.1
    assert max(scores) < 4


def test_wrong_draws_score_high() -> None:
    assert chi_square([1000, 1200, 800], [1, 1, 1]) > 4
    with pytest.raises(AssertionError):
        assert_share(170, 1000, 0.25)
