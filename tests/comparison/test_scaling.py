"""Scaling of a small model: sizes, lengths, the law and its check, resuming, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.comparison.test_compare import BASE, Quiet
from tests.report.checks import page_data

from qkv.comparison.compare import compare
from qkv.comparison.plan import plan_of
from qkv.comparison.scaling import Scaling, extrapolated_rate, total
from qkv.spec.errors import SpecError
from qkv.spec.files.overrides import override
from qkv.spec.recipes.comparison import Comparison
from qkv.system.errors import UserError

pytestmark = pytest.mark.slow


def comparison(**changes: Any) -> Comparison:
    given = {"recipe": "small", "entries": {"a": []}, "seeds": [1], "rates": [1.0], "scale": 2, "fit": True}
    return Comparison.parse({**given, **changes})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Scaling]:
    folder = tmp_path_factory.mktemp("scaling")
    found = compare(comparison(), folder, base=BASE, watcher=Quiet())
    assert isinstance(found, Scaling)
    return folder, found


def test_sizes_double_and_lengths_are_one_two_and_four(whole: tuple[Path, Scaling]) -> None:
    (entry,) = whole[1].entries
    smallest = entry.runs[0].parameters
    assert [(run.size, run.length) for run in entry.runs] == [(s, n) for s in (1, 2) for n in (1, 2, 4)]
    for run in entry.runs:
        assert run.parameters == pytest.approx(run.size * smallest, rel=0.25)
        assert run.tokens == 4 * run.length * 4 * 16  # steps, rows, positions


def test_the_larger_run_has_twice_the_size_and_length_and_is_checked(whole: tuple[Path, Scaling]) -> None:
    (entry,) = whole[1].entries
    assert entry.larger is not None
    assert (entry.larger.size, entry.larger.length) == (4, 8)
    assert entry.extrapolated is not None
    inside = entry.extrapolated.low <= (entry.larger.loss or 0.0) <= entry.extrapolated.high
    assert entry.holds == inside
    assert ("inside the 90 % interval" if inside else "outside the 90 % interval") in whole[1].conclusions()[-1]


def test_the_page_and_the_data_hold_every_run(whole: tuple[Path, Scaling]) -> None:
    folder, found = whole
    data = json.loads((folder / "scaling.json").read_text())
    assert data == found.plain()
    assert len(data["entries"][0]["runs"]) == 6
    assert page_data((folder / "scaling.html").read_text())["comparison"] == data


def test_finished_runs_are_not_repeated(whole: tuple[Path, Scaling]) -> None:
    watcher = Quiet()
    again = compare(comparison(), whole[0], base=BASE, watcher=watcher)
    assert not watcher.reports
    assert isinstance(again, Scaling)
    assert again.plain() == whole[1].plain()
    assert len(watcher.outcomes) == 7 == total(plan_of(comparison(), whole[0], BASE), True)


@pytest.mark.parametrize(
    ("chosen", "size", "expected"),
    [
        ({1: 0.5}, 2, 0.5),
        ({1: 1.0, 2: 1.0}, 4, 1.0),
        ({1: 2.0, 2: 1.0, 4: 0.5}, 16, 0.125),
        ({1: 2.0, 2: 1.0, 4: 0.5, 8: 0.5}, 16, 0.25),  # slope -0.7 through the mean point (1.5, -0.25)
        ({1: 0.5, 4: 1.0}, 16, 2.0),
    ],
)
def test_rate_of_the_larger_model_follows_the_power_law_of_the_chosen_rates(
    chosen: dict[int, float], size: int, expected: float
) -> None:
    assert extrapolated_rate(chosen, size) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "overrides", "sentence"),
    [
        ({"metric": "exact_match"}, (), "needs a metric that decreases, such as loss, but 'exact_match' increases"),
        ({}, ("training.minutes=1",), "has training.minutes, but scaling varies the number of steps"),
        ({"knobs": {"a": "model.blocks.attention.num_heads"}}, (), "cannot be resized to about"),
    ],
)
def test_what_cannot_be_scaled_is_refused(
    changes: dict[str, Any], overrides: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        compare(comparison(**changes), tmp_path, base=override(BASE, overrides), watcher=Quiet())


def test_a_fit_needs_sizes() -> None:
    with pytest.raises(SpecError, match="a law is fitted to several sizes; give scale too"):
        comparison(scale=None)
