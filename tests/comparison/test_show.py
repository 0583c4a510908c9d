"""Progress of a comparison."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.comparison.test_compare import BASE

from qkv.comparison.outcome import Outcome
from qkv.comparison.plan import PlannedRun
from qkv.comparison.show import ShowRuns


def test_a_run_that_is_read_again_is_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [PlannedRun("a", 1.0, seed, BASE, Path(f"a/{seed}")) for seed in (1, 2)]
    with ShowRuns(3) as shown:
        for run in (runs[0], runs[0], runs[1], runs[0]):
            shown.ended(run, Outcome())
    said = capsys.readouterr().err
    assert "2/3 runs" in said
    assert "3/3 runs" not in said
