"""Records of a run's health, made during training, in ``health.jsonl`` beside its metrics."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qkv.report.metrics import read_metrics
from qkv.system.errors import UserError

HEALTH = "health.jsonl"
Record = Mapping[str, Any]


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Read the records of a run; empty for a run of an earlier version. Raises UserError if the file is malformed."""
    try:
        return read_metrics(folder / HEALTH)
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise UserError(str(error)) from None


def places(records: Iterable[Record], quantity: str) -> list[str]:
    """Return the places of which ``quantity`` is recorded, in order: layers, or layers and number of the head."""
    names = dict.fromkeys(name for record in records for name in record if name.startswith(f"{quantity} "))
    return [name.removeprefix(f"{quantity} ") for name in names]


def curve(records: Sequence[Record], quantity: str, place: str) -> tuple[list[int], list[float]]:
    """Return (steps, values) of a quantity at a place."""
    name = f"{quantity} {place}"
    rows = [record for record in records if record.get(name) is not None]
    return [int(row["step"]) for row in rows], [float(row[name]) for row in rows]


def median_ratios(records: Sequence[Record]) -> dict[int, float]:
    """Return the update-to-weight ratio of the median layer, by step; layers that do not move are left out."""
    by_step = {int(r["step"]): [v for name, v in r.items() if name.startswith("ratio ") and v] for r in records}
    return {step: statistics.median(values) for step, values in by_step.items() if values}


def newest(records: Sequence[Record], quantity: str) -> dict[str, float]:
    """Return the last recorded value of a quantity at each place."""
    values = {place: curve(records, quantity, place)[1] for place in places(records, quantity)}
    return {place: some[-1] for place, some in values.items() if some}
