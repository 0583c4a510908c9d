"""Executor of planned runs on a Ray cluster."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.comparison.executors import Watcher
from qkv.comparison.outcome import KILLED, Outcome, Report, carry_out, write_outcome
from qkv.comparison.plan import PlannedRun
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.training.interrupt import Interrupted, StopRequest

LOCAL = "local"
"""Address that starts a cluster on this machine for the comparison."""
_LOOK = 0.5
"""Seconds between checks of the progress and for a request to stop."""
_REPORTED = 20
"""Number of steps between two progress reports of a task."""
_PASSED_ON = ("QKV_DATA", "QKV_CACHE")
"""Environment variables that this process passes on to the runs."""


@dataclass(frozen=True)
class RayCluster:
    """Executor of runs as Ray tasks with ``threads`` cores each, as many at once as the cluster has cores for.

    address: address of the cluster in the form that ``ray.init`` takes (``host:port``, ``ray://host:port``, ``auto``),
    or ``local``. The machines of the cluster need qkv and, at the same paths, the folder of the comparison and the
    data.
    """

    address: str
    threads: int = 1

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise UserError(f"threads: {self.threads} given, but a run needs at least one core")

    def outcomes(self, runs: Sequence[PlannedRun], waiting: Sequence[int], watcher: Watcher) -> dict[int, Outcome]:
        """Carry out the runs with the indices ``waiting``; return index -> outcome. Raises ``UserError``, also if Ray
        is not installed or the cluster does not answer.
        """
        ray = _ray()
        self._connect(ray)
        try:
            return _Tasks(ray, runs, self.threads, watcher).outcomes(waiting)
        finally:
            ray.shutdown()

    def _connect(self, ray: Any) -> None:
        if self.address == LOCAL:
            os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default gives its workers a low priority
        settings = {"env_vars": {name: os.environ[name] for name in _PASSED_ON if name in os.environ}}
        try:
            ray.init(
                address=self.address,
                runtime_env=settings,
                log_to_driver=False,
                logging_level="ERROR",
                **({"include_dashboard": False} if self.address == LOCAL else {}),
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(f"--ray: no Ray cluster answers at {self.address!r} ({_short(error)})") from None


class _Tasks:
    """Runs of one comparison as Ray tasks."""

    def __init__(self, ray: Any, runs: Sequence[PlannedRun], threads: int, watcher: Watcher):
        from ray.util.queue import Queue

        self._ray, self._runs, self._watcher = ray, runs, watcher
        self._reports = Queue(actor_options={"num_cpus": 0})
        self._remote = ray.remote(num_cpus=threads, max_retries=0)(_carried_out)
        self._tasks: dict[Any, int] = {}

    def outcomes(self, waiting: Sequence[int]) -> dict[int, Outcome]:
        """Carry out the runs with the indices ``waiting``; return index -> outcome."""
        outcomes: dict[int, Outcome] = {}
        with StopRequest() as stop:
            for i in waiting:
                run = self._runs[i]
                task = self._remote.remote(i, run.recipe.to_dict(), str(run.folder.resolve()), self._reports)
                self._tasks[task] = i
            try:
                while self._tasks and not stop:
                    ended, _ = self._ray.wait(list(self._tasks), timeout=_LOOK)
                    self._tell()
                    for task in ended:
                        i = self._tasks.pop(task)
                        outcomes[i] = self._outcome(task, self._runs[i])
                        self._watcher.ended(self._runs[i], outcomes[i])
            finally:
                self._stop()
            if stop.signal:
                raise Interrupted(stop.signal, f"stopped by {stop}; the same command resumes")
        return outcomes

    def _tell(self) -> None:
        """Pass the progress reports that have arrived to the watcher."""
        for i, report in self._reports.get_nowait_batch(self._reports.qsize()):
            self._watcher.report(self._runs[i], Report(*report))

    def _outcome(self, task: Any, run: PlannedRun) -> Outcome:
        """Return the outcome of an ended task, and store it. Raises ``UserError`` if the task ended without an outcome,
        for example because the disk is full.
        """
        errors = self._ray.exceptions
        try:
            fields: Mapping[str, Any] = self._ray.get(task)
        except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError):
            outcome = Outcome(KILLED)
        except errors.RayTaskError as error:
            raise UserError(f"{run.title}: {_short(error.cause)}") from None
        else:
            outcome = Outcome(**fields)
        write_outcome(run.folder, outcome)  # a task on another machine may have written it to another disk
        return outcome

    def _stop(self) -> None:
        """Ask the running tasks to stop, and wait until they have saved their checkpoints."""
        for task in self._tasks:
            self._ray.cancel(task)
        if self._tasks:
            self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=60)


def _carried_out(i: int, recipe: Mapping[str, Any], folder: str, reports: Any) -> dict[str, Any]:
    """Carry out run number ``i`` in a Ray task; return the fields of its outcome."""

    def tell(report: Report) -> None:
        if report.step % _REPORTED == 0 or report.step == report.steps:
            reports.put_nowait((i, tuple(report)))

    return vars(carry_out(Recipe.parse(recipe, "the run's recipe"), Path(folder), tell))


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise UserError("--ray needs the package ray; install it by: pip install 'qkv[ray]'") from None


def _short(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
