"""Probe timings that a test decides, in place of the machine's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar

import pytest

from qkv.ops.selection import choices, timing
from qkv.ops.selection.timing import Race

Runs = Mapping[str, Callable[[], object]]


def new_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has chosen nothing yet."""
    table = choices.ChoiceTable()
    monkeypatch.setattr(choices, "_table", ContextVar("table", default=table))
    monkeypatch.setattr(choices, "_traced", table)


def forget_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is chosen yet, and nothing is remembered from or for other processes."""
    new_table(monkeypatch)
    monkeypatch.setattr(choices, "recall", lambda op, case: None)
    monkeypatch.setattr(choices, "remember", lambda op, case, fields: None)


def inject_times(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[str], float]) -> list[list[str]]:
    """Let each candidate take the time ``seconds`` of its name; return the candidates of each race.

    Speed-ups below two are not confirmed.
    """
    races: list[list[str]] = []

    def race(runs: Runs) -> Race:
        races.append(list(runs))
        return Race({name: seconds(name) for name in runs})

    monkeypatch.setattr(timing, "race", race)
    monkeypatch.setattr(timing, "duel", lambda a, b: [1.0])
    return races


def inject(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[str], float]) -> list[list[str]]:
    """``inject_times`` where nothing is chosen yet."""
    forget_choices(monkeypatch)
    return inject_times(monkeypatch, seconds)


def quickest(name: str) -> Callable[[str], float]:
    """One candidate takes a tenth of the others' time."""
    return lambda other: 0.1 if other == name else 1.0
