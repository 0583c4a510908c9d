"""Contestants: the model of a run (deep path), its wide path, and both combined. Their metrics on the validation split
decide which one the run keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qkv.models.transformer import Transformer
from qkv.report.evaluation import ERRORS, words


class Contestant(NamedTuple):
    """Weighted sum of the deep and the wide path: the two factors, and the validation metrics with these factors.

    ``tested``: metrics on the test split, if available; they do not influence the choice. ``eligible``: False if the
    run may not choose this contestant, which is then only shown for comparison. ``expected``: cross-validated loss,
    computed on rows to which the factors were not fitted; None if not computed.
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
        """Loss by which contestants are compared: ``expected`` if available, else the loss on the validation split."""
        return self.figures["loss"] if self.expected is None else self.expected


def ranked(contestants: list[Contestant], metric: str, baseline: float | None) -> list[Contestant]:
    """Sort contestants from best to worst; ineligible contestants come last.

    The first group has all contestants whose metric is not worse than ``baseline``, or only the contestant with the
    best metric if all are worse. ``baseline`` None: use the metric of the first contestant, the wide path. Within a
    group, contestants are sorted by loss, rounded to three significant digits; those with equal losses keep their
    order.
    """
    sign = 1 if metric in ERRORS else -1
    errors = [sign * each.figures[metric] for each in contestants]
    bound = max(min(errors), errors[0] if baseline is None else sign * baseline)

    def key(each: Contestant) -> tuple[bool, bool, float]:
        return not each.eligible, sign * each.figures[metric] > bound, float(f"{each.loss:.3g}")

    return sorted(contestants, key=key)


def deep_name(model: Transformer, name: str) -> str:
    """Return the name of the deep path: ``name``, that of the winner of heats, else the kinds of its token mixers."""
    kinds = dict.fromkeys(each.kind for block in model.spec.layers for each in block.branches if each.mixes)
    return name or " and ".join(kinds) or "deep path"


def section(contestants: Sequence[Contestant], metric: str) -> dict[str, Any]:
    """Build the table of the contestants for the report."""
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
    note = "The first row is the model that this run keeps: "
    if "loss" not in contestants[0].figures:
        note += f"it has the best validation {words(metric)}."
    elif all(each.eligible for each in contestants):
        note += f"of all models whose validation {words(metric)} is not worse than the baseline's, it has the lowest "
        note += "loss in cross-validation within the validation split." if expected else "validation loss."
    else:
        count = sum(each.eligible for each in contestants)
        note += f"of the first {count}, which the run may keep, it has the lowest validation loss; "
        note += "the others are shown for comparison."
    return {"kind": "contestants", "title": "Contestants", "note": note, "columns": columns, "rows": rows}


def tested_section(contestants: Sequence[Contestant]) -> list[dict[str, Any]]:
    """Build the table of the contestants' metrics on the test split, in the order of the validation split; empty if
    there are none.
    """
    if not contestants or not contestants[0].tested:
        return []
    names = list(contestants[0].tested)
    rows = [[each.name, *(f"{each.tested[name]:.4g}" for name in names)] for each in contestants]
    note = "The validation split determines order and choice; these metrics do not influence them."
    title = "Contestants on the test split"
    columns = ["model", *map(words, names)]
    return [{"kind": "contestants", "title": title, "note": note, "columns": columns, "rows": rows}]
