"""Runs in processes: order, progress, failures and errors, shown with a program in the place of the worker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qkv.comparison.executors import Processes, execute
from qkv.comparison.outcome import Outcome, Report, read_outcome
from qkv.comparison.plan import PlannedRun
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError

RECIPE = Recipe.parse({"task": "sorting", "model": {"head": "tokens"}})
WORKER = """\
#!/bin/sh
read line
case "$line" in
  */slow\\"*) sleep 0.3 ;;
  */kill\\"*) kill -9 $$ ;;
  */error\\"*) echo '{"error": "the disk is full"}'; exit 2 ;;
  */crash\\"*) echo "Traceback" >&2; echo "ValueError: no" >&2; exit 1 ;;
esac
echo 'a part of the user prints this'
echo '{"report": [1, 2, 3.5]}'
echo "{\\"outcome\\": {\\"figures\\": {\\"threads\\": $OMP_NUM_THREADS}}}"
"""


class Kept:
    """Watcher that keeps what it receives, in order."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.names: list[str] = []

    def report(self, run: PlannedRun, report: Report) -> None:
        self.reports.append(report)

    def ended(self, run: PlannedRun, outcome: Outcome) -> None:
        self.names.append(run.entry)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of runs; processes run ``WORKER`` with four threads in all."""
    script = tmp_path / "worker.sh"
    script.write_text(WORKER)
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    return tmp_path


def runs(folder: Path, *names: str) -> list[PlannedRun]:
    return [PlannedRun(name, 1.0, 1, RECIPE, folder / name) for name in names]


def test_two_at_once_share_the_threads_and_outcomes_are_in_order(folder: Path) -> None:
    kept = Kept()
    found = execute(runs(folder, "slow", "b", "c"), Processes(2), kept)
    assert [outcome.figures for outcome in found] == [{"threads": 2}] * 3
    assert kept.names[-1] == "slow"
    assert kept.reports == [Report(1, 2, 3.5)] * 3


def test_a_run_that_the_system_kills_has_failed_and_the_others_go_on(folder: Path) -> None:
    found = execute(runs(folder, "kill", "b"), Processes(1), Kept())
    assert [outcome.failed for outcome in found] == [
        "killed by the operating system, for example because memory ran out",
        "",
    ]
    assert read_outcome(folder / "kill") == found[0]
    kept = Kept()
    assert execute(runs(folder, "kill"), Processes(1), kept) == found[:1]  # read, not repeated
    assert kept.names == ["kill"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("error", "error, rate × 1, seed 1: the disk is full"), ("crash", "crash, rate × 1, seed 1: ValueError: no")],
)
def test_other_errors_end_the_comparison(name: str, sentence: str, folder: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        execute(runs(folder, "slow", name), Processes(2), Kept())
    assert read_outcome(folder / name) is None
