"""Metrics of a run: the rows of ``metrics.jsonl``, and the plan of a time budget in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qkv.report.figures import duration
from qkv.report.metrics import read_metrics
from qkv.spec.errors import UserError

METRICS = "metrics.jsonl"
PLANNED, EXPECTED, TAKEN = "planned_steps", "planned_seconds", "taken_seconds"
"""Keys of metrics rows of a run with a budget: planned steps, expected seconds of the whole run, and seconds taken."""


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Read the rows of the ``metrics.jsonl`` of a run folder; empty if there is none. Raises UserError if the file is
    malformed.
    """
    try:
        return read_metrics(folder / METRICS)
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise UserError(str(error)) from None


def is_planned(folder: Path) -> bool:
    """True if the run's metrics contain a plan for its time budget."""
    return any(PLANNED in row for row in rows_of(folder))


def steps_in_all(rows: list[dict[str, Any]], most: int) -> int:
    """Return the total number of steps by the newest plan in the metrics ``rows``; ``most`` (the recipe's number)
    without a plan.
    """
    return next((row[PLANNED] for row in reversed(rows) if PLANNED in row), most)


def times(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return (label, duration) of the expected and actual time of a run with a time budget, as text for a table."""
    told = [
        ("expected before the start" if not row["step"] else f"expected after {row['step']:,} steps", row[EXPECTED])
        for row in rows
        if EXPECTED in row
    ]
    told += [("taken in all", row[TAKEN]) for row in rows if TAKEN in row][-1:]
    return [(what, duration(seconds)) for what, seconds in told]
