"""Executors of planned runs: one run after the other in this process, or several at once, each in its own process.

``qkv.comparison.ray_cluster`` has another executor, for Ray clusters.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol

from qkv.comparison.outcome import KILLED, Outcome, Report, carry_out, read_outcome, write_outcome
from qkv.comparison.plan import PlannedRun
from qkv.comparison.worker import report_of
from qkv.system.allowance import usable_threads
from qkv.system.errors import UserError
from qkv.training.interrupt import Interrupted, StopRequest

_LOOK = 0.5
"""Seconds between checks for a request to stop."""


class Watcher(Protocol):
    """Interface of objects that receive the progress of runs."""

    def report(self, run: PlannedRun, report: Report) -> None:
        """Receive the progress of a run."""

    def ended(self, run: PlannedRun, outcome: Outcome) -> None:
        """Receive the outcome of a run, also if it was finished earlier."""


class Executor(Protocol):
    """Interface of executors, which carry out planned runs."""

    def outcomes(self, runs: Sequence[PlannedRun], waiting: Sequence[int], watcher: Watcher) -> dict[int, Outcome]:
        """Carry out the runs with the indices ``waiting``; return index -> outcome.

        Each outcome is passed to the watcher when the run has ended. Raises ``UserError`` if a run ends without an
        outcome, for example because the disk is full, and ``Interrupted`` after a signal.
        """
        ...


def execute(runs: Sequence[PlannedRun], executor: Executor, watcher: Watcher) -> list[Outcome]:
    """Carry out those of ``runs`` that have no outcome yet; return the outcomes of all runs in order."""
    outcomes: dict[int, Outcome] = {}
    for i, run in enumerate(runs):
        outcome = read_outcome(run.folder)
        if outcome is not None:
            outcomes[i] = outcome
            watcher.ended(run, outcome)
    waiting = [i for i in range(len(runs)) if i not in outcomes]
    if waiting:
        outcomes |= executor.outcomes(runs, waiting, watcher)
    return [outcomes[i] for i in range(len(runs))]


class Here:
    """Executor in this process, one run after the other."""

    def outcomes(self, runs: Sequence[PlannedRun], waiting: Sequence[int], watcher: Watcher) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        for i in waiting:
            run = runs[i]
            outcomes[i] = carry_out(run.recipe, run.folder, lambda report, run=run: watcher.report(run, report))
            watcher.ended(run, outcomes[i])
        return outcomes


@dataclass(frozen=True)
class Processes:
    """Executor of ``jobs`` runs at once, each in a separate process with an equal share of the threads."""

    jobs: int

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise UserError(f"jobs: {self.jobs} given; give at least 1")

    def outcomes(self, runs: Sequence[PlannedRun], waiting: Sequence[int], watcher: Watcher) -> dict[int, Outcome]:
        return _Pool(runs, self.jobs, watcher).outcomes(waiting)


@dataclass
class _Child:
    """Process of one run, and the file to which its standard error is written."""

    process: subprocess.Popen[str]
    errors: IO[str]
    outcome: Outcome | None = None
    error: str = ""


class _Pool:
    """Processes that carry out runs, each with an equal share of the threads."""

    def __init__(self, runs: Sequence[PlannedRun], jobs: int, watcher: Watcher):
        self._runs, self._jobs, self._watcher = runs, jobs, watcher
        self._threads = max(1, usable_threads() // jobs)
        self._lines: queue.Queue[tuple[int, str]] = queue.Queue()
        self._children: dict[int, _Child] = {}

    def outcomes(self, waiting: Sequence[int]) -> dict[int, Outcome]:
        """Carry out the runs with the indices ``waiting``; return index -> outcome."""
        left, outcomes = deque(waiting), dict[int, Outcome]()
        with StopRequest() as stop:
            try:
                while (left or self._children) and not stop:
                    while left and len(self._children) < self._jobs:
                        self._start(left.popleft())
                    for i in self._look():
                        outcomes[i] = self._ended(i)
                        self._watcher.ended(self._runs[i], outcomes[i])
            finally:
                self._stop()
            if stop.signal:
                raise Interrupted(stop.signal, f"stopped by {stop}; the same command resumes")
        return outcomes

    def _start(self, i: int) -> None:
        run = self._runs[i]
        errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, "-m", "qkv.comparison.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            env={**os.environ, "OMP_NUM_THREADS": str(self._threads)},
            start_new_session=True,  # Ctrl-C only reaches this process, which then asks its children to stop
        )
        self._children[i] = _Child(process, errors)
        assert process.stdin is not None
        process.stdin.write(json.dumps({"recipe": run.recipe.to_dict(), "folder": str(run.folder)}) + "\n")
        process.stdin.flush()
        threading.Thread(target=self._read, args=(i, process.stdout), daemon=True).start()

    def _read(self, i: int, lines: IO[str]) -> None:
        for line in lines:
            self._lines.put((i, line))
        self._lines.put((i, ""))

    def _look(self) -> list[int]:
        """Wait for the next output line of any process and handle it. Return [index of the run] if its process has
        closed its output, else [].
        """
        try:
            i, line = self._lines.get(timeout=_LOOK)
        except queue.Empty:
            return []
        if not line:
            return [i]
        try:
            message: dict[str, Any] = json.loads(line)
        except ValueError:  # not a message of the worker: a user-defined part printed this line
            return []
        child = self._children[i]
        if "report" in message:
            self._watcher.report(self._runs[i], report_of(message["report"]))
        elif "outcome" in message:
            child.outcome = Outcome(**message["outcome"])
        elif "error" in message:
            child.error = message["error"]
        return []

    def _ended(self, i: int) -> Outcome:
        """Return the outcome of the run whose process has ended. Raises ``UserError`` if it ended without an outcome,
        for example because the disk is full.
        """
        child, run = self._children.pop(i), self._runs[i]
        code = child.process.wait()
        message = _last_line(child.errors)
        _close(child)
        if child.outcome is None and code == -signal.SIGKILL:
            child.outcome = Outcome(KILLED)
            write_outcome(run.folder, child.outcome)
        if child.outcome is None:
            raise UserError(f"{run.title}: {child.error or message or f'its process ended with code {code}'}")
        return child.outcome

    def _stop(self) -> None:
        """Ask the running processes to stop, and wait until they have saved their checkpoints."""
        for child in self._children.values():
            child.process.terminate()
        for child in self._children.values():
            child.process.wait()
            _close(child)


def _close(child: _Child) -> None:
    for file in (child.process.stdin, child.process.stdout, child.errors):
        if file is not None:
            file.close()


def _last_line(file: IO[str]) -> str:
    file.seek(0)
    return next((line.strip() for line in reversed(file.read().splitlines()) if line.strip()), "")
