"""``Verdict``: what a check says about a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["good", "note", "warning", "alarm"]
"""good: within the limit; note: nothing to cure; warning: the result suffers; alarm: the result cannot be trusted."""
ORDER: tuple[Severity, ...] = ("alarm", "warning", "note", "good")
"""Severities, the worst first."""


@dataclass(frozen=True)
class Verdict:
    """Result of one check of a run.

    check: name of the check, such as "update_ratio".   sentence: what was measured, the limit, and its source.   value:
    measured value.   limit: threshold that it is compared with.   source: where the threshold comes from.   cure:
    command that cures it; "" if nothing is to be done.   places: layers, heads or rows that are meant.
    """

    check: str
    severity: Severity
    sentence: str
    value: float | None = None
    limit: float | None = None
    source: str = ""
    cure: str = ""
    places: tuple[str, ...] = ()

    @property
    def ill(self) -> bool:
        """Whether the verdict is a warning or an alarm."""
        return self.severity in ("warning", "alarm")

    def plain(self) -> dict[str, Any]:
        """Return the verdict as plain data."""
        return asdict(self)


def worst(verdicts: Iterable[Verdict]) -> Severity:
    """Return the worst severity among the verdicts; "good" if there are none."""
    present: set[Severity] = {verdict.severity for verdict in verdicts}
    for severity in ORDER:
        if severity in present:
            return severity
    return "good"
