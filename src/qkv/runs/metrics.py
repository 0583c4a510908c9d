"""Metrics of a run: the rows of ``metrics.jsonl``, including the plan of a run with a time budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qkv.report.figures import duration
from qkv.report.metrics import read_metrics
from qkv.system.errors import UserError

METRICS = "metrics.jsonl"
PLANNED, EXPECTED, TAKEN = "planned_steps", "planned_seconds", "taken_seconds"
"""Keys in metrics rows of a run with a time budget: planned steps, expected seconds of the whole run, actual seconds of
the whole run.
"""


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Read the rows of ``metrics.jsonl`` in a run folder; empty if the file does not exist. Raises UserError if the
    file is malformed.
    """
    try:
        return read_metrics(folder / METRICS)
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise UserError(str(error)) from None


def is_planned(folder: Path) -> bool:
    """Return True if the run's metrics contain a plan for its time budget."""
    return any(PLANNED in row for row in rows_of(folder))


def steps_in_all(rows: list[dict[str, Any]], most: int) -> int:
    """Return the total number of steps in the newest plan in the metrics ``rows``; without a plan ``most``, the number
    in the recipe.
    """
    return next((row[PLANNED] for row in reversed(rows) if PLANNED in row), most)


def times(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return expected and actual durations of a run with a time budget, as rows (label, duration) of a table."""
    durations = [
        ("expected before the start" if not row["step"] else f"expected after {row['step']:,} steps", row[EXPECTED])
        for row in rows
        if EXPECTED in row
    ]
    durations += [("taken in all", row[TAKEN]) for row in rows if TAKEN in row][-1:]
    return [(what, duration(seconds)) for what, seconds in durations]
