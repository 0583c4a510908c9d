"""Files that record a run: metrics, optional TensorBoard logs, and the HTML report."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Mapping
from functools import singledispatchmethod
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch

from qkv.costs.cost import cost
from qkv.lens.health.evidence import Evidence
from qkv.lens.health.examine import ON_RECORDS, judge
from qkv.lens.health.page import verdict_section
from qkv.lens.health.records import HEALTH, read_records
from qkv.models.wide import num_parameters
from qkv.report.figures import duration, short, size
from qkv.report.metrics import MetricsLog, TensorBoardLog
from qkv.report.training import Status, TrainingRun, training_report
from qkv.runs.metrics import EXPECTED, METRICS, PLANNED, rows_of, steps_in_all, times
from qkv.runs.storage.evaluation_file import read_evaluation
from qkv.runs.storage.files import clear_errors, files_in, read_metadata
from qkv.runs.storage.folder import WEIGHTS
from qkv.spec.files.yaml_io import dump
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.system.files import write_file
from qkv.system.processor import processor_name
from qkv.training.setup import Setup
from qkv.training.usage import counted, usage
from qkv.training.watch.events import Event, Planned, Sampled, Stepped, Validated
from qkv.training.watch.sections import read_sections

try:
    import resource
except ImportError:  # not on Unix: the report omits the peak memory
    resource = None
REPORT = "report.html"


class Done(NamedTuple):
    """Amount of training so far: number of targets, of rows, and of positions that the decoder or only stack
    (``positions``) and the encoder (``sources``) have read, padding included.
    """

    targets: int
    rows: int = 0
    positions: int = 0
    sources: int = 0


class RunRecorder:
    """Writer of a run's ``metrics.jsonl`` and ``report.html``. If the run resumes from ``step``, the metrics of later
    steps are removed.
    """

    def __init__(self, setup: Setup, step: int):
        self.setup = setup
        self.path = setup.folder / METRICS
        with clear_errors(str(self.path)):
            self._log = MetricsLog(self.path)
            self._log.truncate_after(step)
            self._health = MetricsLog(setup.folder / HEALTH)
            self._health.truncate_after(step)
        self._board = _tensorboard(setup.folder) if setup.recipe.training.tensorboard else None
        self._reported = -float("inf")
        self._report_seconds = 0.0

    @singledispatchmethod
    def add(self, event: Event) -> None:
        """Append a metrics row for an event; events without metrics are ignored."""

    @add.register
    def _(self, event: Stepped) -> None:
        figures = {
            "loss": event.loss,
            "lr": event.lr,
            "grad_norm": event.grad_norm,
            "tokens_per_second": event.tokens_per_second,
        }
        self.row(step=event.step, time=event.seconds, **figures)

    @add.register
    def _(self, event: Validated) -> None:
        self.row(
            step=event.step,
            time=event.seconds,
            val_loss=event.loss,
            **{f"val_{k}": v for k, v in event.figures.items() if k != "loss"},
        )

    @add.register
    def _(self, event: Planned) -> None:
        self.row(step=event.step, **{PLANNED: event.steps, EXPECTED: event.seconds})

    @add.register
    def _(self, event: Sampled) -> None:
        self.row(step=event.step, sample=event.text)

    def row(self, **values: Any) -> None:
        """Append one row with these values to the metrics."""
        with clear_errors(str(self.path)):
            self._log.write(**values)
        if self._board:
            self._board.write(**values)

    def health(self, step: int, record: Mapping[str, float]) -> None:
        """Append one record of ``qkv.lens.health`` to ``health.jsonl``."""
        with clear_errors(str(self._health.path)):
            self._health.write(step=step, **record)

    def flush(self) -> None:
        """Write all buffered metrics rows to disk."""
        with clear_errors(str(self.path)):
            self._log.flush(durable=True)
            self._health.flush()

    def close(self) -> None:
        """Write all buffered rows and close the files."""
        with clear_errors(str(self.path)):
            self._log.close()
            self._health.close()
        if self._board:
            self._board.close()

    def __enter__(self) -> RunRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def report_now_and_then(self, done: Done) -> None:
        """Write the report of a run in progress, at most every 20 seconds, and seldom enough to take at most 2 % of the
        time.
        """
        if time.perf_counter() - self._reported >= max(20.0, 50 * self._report_seconds):
            self.report("running", "", done)

    def report(self, status: Status, message: str, done: Done) -> None:
        """Write the HTML report into the run folder."""
        began = time.perf_counter()
        self.flush()
        path = self.setup.folder / REPORT
        page = training_report(self._run(status, message, done))
        with clear_errors(str(path)):
            write_file(path, page.encode())
        self._reported = time.perf_counter()
        self._report_seconds = self._reported - began

    def _run(self, status: Status, message: str, done: Done) -> TrainingRun:
        setup, recipe = self.setup, self.setup.recipe
        rows = rows_of(setup.folder)
        return TrainingRun(
            name=recipe.name or setup.folder.resolve().name,
            description=recipe.description,
            metrics=rows,
            spec_yaml=dump(recipe),
            cost=_cost(setup, rows, done.targets),
            environment=environment(setup.device),
            samples=[{"step": row["step"], "text": row["sample"]} for row in rows if "sample" in row],
            folder=str(setup.folder),
            status=status,
            message=message,
            figures=self._figures(done, rows),
            loss_unit=setup.task.loss_unit,
            best=recipe.training.validation.best,
            usage=usage(setup.task, setup.folder),
            evaluation=_evaluation(setup.folder) if status == "finished" else None,
            sections=[*read_sections(setup.folder), *(self._health_sections(rows) if status != "running" else ())],
        )

    def _health_sections(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return a section with the warnings on the run's curves and layers; empty if there are none."""
        evidence = Evidence(self.setup.folder, self.setup.recipe, rows, read_records(self.setup.folder))
        ill = [verdict for verdict in judge(evidence, ON_RECORDS) if verdict.ill]
        return [verdict_section(ill)] if ill else []

    def _figures(self, done: Done, rows: list[dict[str, Any]]) -> dict[str, float]:
        setup, training = self.setup, self.setup.recipe.training
        figures: dict[str, float] = {
            "total_steps": steps_in_all(rows, training.steps),
            "parameters": num_parameters(setup.model, setup.task.wide),
            "tokens": done.targets,
        }
        if any("val_bits_per_character" in row for row in rows):
            figures["characters_per_token"] = setup.dataset.scale().characters_per_token
        optional = {"clip_norm": training.clip_norm, "flops": trained_flops(setup.recipe, done)}
        return figures | {name: value for name, value in optional.items() if value is not None}


class SilentRecorder(RunRecorder):
    """Recorder that writes nothing, for all processes of a run except the first."""

    def __init__(self) -> None:
        pass

    def row(self, **values: Any) -> None:
        """Ignore the values."""

    def health(self, step: int, record: Mapping[str, float]) -> None:
        """Ignore the record."""

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def report_now_and_then(self, done: Done) -> None:
        """Write no report."""

    def report(self, status: Status, message: str, done: Done) -> None:
        """Write no report."""


def open_recorder(setup: Setup, step: int) -> RunRecorder:
    """Return the recorder of this process for a run that continues after ``step``: only the first process writes."""
    return RunRecorder(setup, step) if setup.world.first else SilentRecorder()


def _evaluation(folder: Path) -> dict[str, Any] | None:
    """Read the stored final evaluation of the best weights from a finished run's folder; None if there is none."""
    if not (folder / WEIGHTS).exists():
        return None
    return read_evaluation(folder, int(read_metadata(folder / WEIGHTS).get("step", 0)))


def environment(device: torch.device) -> dict[str, str]:
    """Return the processor, device, threads, and versions of Python, torch and the operating system as text by name,
    for the report.
    """
    return {
        "processor": processor_name(),
        "device": str(device),
        "threads used": str(torch.get_num_threads()),
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
    }


def trained_flops(recipe: Recipe, done: Done) -> float | None:
    """Compute the FLOPs of all updates so far, padding included, as the number of rows times the cost of one row of
    mean length.

    Returns None if the cost of a part is not implemented, or if the run was trained by an older version that did not
    count rows.
    """
    if not done.rows:
        return None
    length, source = (max(1, round(positions / done.rows)) for positions in (done.positions, done.sources))
    try:
        counted = cost(
            recipe.model, 1, length, training=recipe.training, source_length=source if recipe.model.encoder else None
        )
    except UserError:
        return None
    return counted.train_flops / recipe.training.accumulate * done.rows


def _cost(setup: Setup, rows: list[dict[str, Any]], tokens: int) -> list[tuple[str, str]]:
    seconds = max((row["time"] for row in rows if row.get("time") is not None), default=0.0)
    saved = sum(files_in(setup.folder / "resume").values())
    return [
        ("training time", duration(seconds)),
        *times(rows),
        (f"{counted(setup.task)} trained on", short(tokens)),
        ("epochs", short(tokens / setup.dataset.epoch_targets)),
        ("checkpoints on disk", size(saved)),
        *_peak_memory(),
    ]


def _peak_memory() -> list[tuple[str, str]]:
    if resource is None:
        return []
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return [("peak memory of the process", size(peak))]


def _tensorboard(folder: Path) -> TensorBoardLog:
    try:
        return TensorBoardLog(folder / "tensorboard")
    except ImportError as error:
        raise UserError(f"training.tensorboard: {error}") from None
