"""Contestants of a model with a wide path, compared on the validation part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qkv.report.evaluation import ERRORS, words


class Contestant(NamedTuple):
    """Factors of both paths, and the validation metrics with them; ``tested``: those of the test part, if known, which
    decide nothing. ``eligible``: False if the run may not keep it, and it is shown for comparison. ``expected``: loss
    of rows that the factors were not fitted to, if it is known.
    """

    name: str
    deep: float
    wide: float
    figures: dict[str, float]
    tested: dict[str, float] = {}
    eligible: bool = True
    expected: float | None = None

    @property
    def loss(self) -> float:
        """Loss that decides: the expected one, else that of the validation part."""
        return self.figures["loss"] if self.expected is None else self.expected


def ranked(contestants: list[Contestant], metric: str, baseline: float | None) -> list[Contestant]:
    """Contestants in order: by loss, those whose metric is not worse than ``baseline`` first; if all are worse, the one
    of the best metric first. Without a baseline it is the metric of the wide path, the first of ``contestants``. Losses
    that agree in three digits are equal; of equal contestants, the order is that given. Ineligible ones are the last.
    """
    sign = 1 if metric in ERRORS else -1
    errors = [sign * each.figures[metric] for each in contestants]
    bound = max(min(errors), errors[0] if baseline is None else sign * baseline)

    def key(each: Contestant) -> tuple[bool, bool, float]:
        return not each.eligible, sign * each.figures[metric] > bound, float(f"{each.loss:.3g}")

    return sorted(contestants, key=key)


def section(contestants: Sequence[Contestant], metric: str) -> dict[str, Any]:
    """Table of the contestants for the report."""
    names, tested = list(contestants[0].figures), [metric] if contestants[0].tested else []
    expected = contestants[0].expected is not None
    rows = [
        [
            each.name,
            f"{each.deep:.2f}",
            f"{each.wide:.2f}",
            *(f"{each.figures[name]:.4g}" for name in names),
            *(f"{each.tested[name]:.4g}" for name in tested),
            *([f"{each.loss:.4g}"] if expected else []),
        ]
        for each in contestants
    ]
    columns = ["model", "factor deep", "factor wide", *map(words, names), *(f"test {words(name)}" for name in tested)]
    columns += ["cross-validated loss"] if expected else []
    note = "The first row is the model of this run: of those "
    if all(each.eligible for each in contestants):
        note += f"whose validation {words(metric)} is not worse than that of the baseline, it has the least "
        note += "cross-validated loss within that part." if expected else "validation loss."
    else:
        count = sum(each.eligible for each in contestants)
        note += f"that it may keep, the first {count}, it has the least validation loss; the others are a comparison."
    return {"kind": "contestants", "title": "Contestants", "note": note, "columns": columns, "rows": rows}


def tested_section(contestants: Sequence[Contestant]) -> list[dict[str, Any]]:
    """Table of the contestants' metrics on the test part, in the order of the validation part; empty if unknown."""
    if not contestants or not contestants[0].tested:
        return []
    names = list(contestants[0].tested)
    rows = [[each.name, *(f"{each.tested[name]:.4g}" for name in names)] for each in contestants]
    note = "Order and choice are those of the validation part; these figures decide nothing."
    title = "Contestants on the test part"
    columns = ["model", *map(words, names)]
    return [{"kind": "contestants", "title": title, "note": note, "columns": columns, "rows": rows}]
