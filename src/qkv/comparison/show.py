"""Progress of a comparison on standard error: one line with the runs done, current speeds and the remaining time."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from qkv.comparison.outcome import Outcome, Report
from qkv.comparison.plan import PlannedRun
from qkv.report.figures import short
from qkv.report.progress import Progress

_PARTS = 1000
"""Number of units in which the progress of one run is counted."""


class ShowRuns:
    """Watcher that shows the progress of runs on standard error: ``with ShowRuns(total) as watcher: ...``."""

    def __init__(self, total: int) -> None:
        self._progress = Progress("compare", total * _PARTS, "runs", per_unit=_PARTS)
        self._over: set[Path] = set()
        self._current: dict[str, Report] = {}

    def __enter__(self) -> ShowRuns:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)

    def report(self, run: PlannedRun, report: Report) -> None:
        """Show the progress of a run."""
        self._current[run.title] = report
        self._show()

    def ended(self, run: PlannedRun, outcome: Outcome) -> None:
        """Count a run that has ended, once only, and show the reason if it failed."""
        if run.folder in self._over:
            return
        self._over.add(run.folder)
        if self._current.pop(run.title, None) is None:  # it had ended before this process started
            self._progress.resume(len(self._over) * _PARTS)
        if outcome.failed:
            self._progress.note(f"{run.title} failed: {outcome.failed}")
        self._show()

    def _show(self) -> None:
        shares = sum(min(1.0, report.step / max(1, report.steps)) for report in self._current.values())
        speeds = ", ".join(f"{title} {short(report.speed)}/s" for title, report in self._current.items())
        self._progress.update(len(self._over) * _PARTS + int(shares * _PARTS), now=speeds or None)
