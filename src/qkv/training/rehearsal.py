"""Rehearsal: before training, measure the time of a run's steps, validations, samples, checkpoints and final
evaluation. Model, optimiser and random generators are restored bit for bit afterwards.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Protocol

import torch

from qkv.data.batching.batch import Batch
from qkv.data.corpora.corpus import VALIDATION
from qkv.layers.linear.lora import merged
from qkv.models.transformer import Transformer
from qkv.ops.selection.choices import all_choices
from qkv.runs.evaluation import evaluate_split, held_out, measure
from qkv.runs.storage.checkpoint import weights
from qkv.runs.storage.files import clear_errors, write_tensors
from qkv.spec.training import Training
from qkv.system.errors import UserError
from qkv.system.files import PARTIAL
from qkv.system.world import World
from qkv.tasks.dataset import Dataset, ExampleDataset
from qkv.tasks.example_task import ExampleTask
from qkv.training import clock, random_state
from qkv.training.optim.optimisers import Optimizer
from qkv.training.plan import Costs
from qkv.training.setup import Setup
from qkv.training.steps.gradients import StepGradient
from qkv.training.watch.progress import RunProgress

_SHARE, _LONGEST = 0.02, 6.0
"""Maximum time of the rehearsed steps: this share of the time budget, but at most this many seconds. The number of
rehearsed steps is at least ``_FEWEST``, and at most ``_MOST`` or a tenth of the recipe's steps.
"""
_FEWEST, _MOST = 3, 50
_BATCHES = 3
"""Number of evenly spaced validation batches that are timed."""
_ROWS = (64, 256)
"""Numbers of rows of two small evaluations; the time of the full evaluation is extrapolated linearly from both."""


class Rehearsed(Protocol):
    """Interface of the trainer that a rehearsal times: its model, settings and updates."""

    model: Transformer
    optimizer: Optimizer
    setup: Setup
    world: World
    now: RunProgress
    gradients: StepGradient
    evaluates: bool
    """True if the run ends with a final evaluation."""

    @property
    def training(self) -> Training:
        """Training settings of the recipe."""
        ...

    def descend(self, step: int) -> object:
        """Make update number ``step``."""


def rehearse(trainer: Rehearsed) -> Costs:
    """Measure the seconds that a run's steps, validations, samples, checkpoints and final evaluation take, and restore
    the run's state afterwards.

    For a run without a final evaluation, such as a heat, only steps and validations are measured. Raises ``UserError``
    for errors that the run itself would raise.
    """
    with _as_it_was(trainer):
        step = _step(trainer)
        if not trainer.evaluates:
            return Costs(step, _validation(trainer))
        return Costs(
            step,
            _validation(trainer),
            _sample(trainer),
            *_files(trainer),
            _evaluations(trainer),
        )


@contextmanager
def _as_it_was(trainer: Rehearsed) -> Iterator[None]:
    tensors = [*trainer.gradients.model.parameters(), *trainer.gradients.model.buffers()]
    copies = [tensor.detach().clone() for tensor in tensors]
    remembered = {name: tensor.clone() for name, tensor in trainer.optimizer.state_dict().items()}
    generators = random_state.capture()
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy)
        trainer.optimizer.zero_grad()
        trainer.optimizer.load_state_dict(remembered)
        random_state.restore(generators)
        trainer.gradients.model.train()
        trainer.model.train()


def _step(trainer: Rehearsed) -> float:
    """Measure the median seconds of a few updates; a median, because the first steps of a process have outliers.

    An update during which an op chose its implementation is timed again, because ops choose only once.
    """
    minutes = trainer.training.minutes
    assert minutes is not None
    first = trainer.now.step + 1
    _seconds(lambda: trainer.descend(first))
    times: list[float] = []
    until = clock.seconds() + min(_LONGEST, _SHARE * 60 * minutes)
    most = min(_MOST, trainer.training.steps // 10)
    while len(times) < _FEWEST or (len(times) < most and trainer.world.agree(clock.seconds() < until)):
        choices, step = len(all_choices()), first + len(times)
        duration = _seconds(lambda step=step: trainer.descend(step))
        times.append(duration if len(all_choices()) == choices else _seconds(lambda step=step: trainer.descend(step)))
    return statistics.median(times)


def _validation(trainer: Rehearsed) -> float:
    """Estimate the seconds of a full validation from a few of its batches."""
    setup = trainer.setup
    whole = sum(1 for _ in setup.dataset.rows(VALIDATION, trainer.training.validation.batches))
    few = min(_BATCHES, whole)
    batches = list(islice(setup.dataset.rows(VALIDATION, few), few))

    def look(some: list[Batch]) -> None:
        measure(trainer.model, setup.task, some, trainer.training.precision)

    look(batches[:1])
    return _seconds(lambda: look(batches)) * whole / len(batches)


def _sample(trainer: Rehearsed) -> float:
    """Measure the seconds to generate one sample; 0 if the task generates none or generation fails, which training will
    report.
    """
    setup = trainer.setup
    try:
        return _seconds(lambda: setup.task.sample(trainer.model, setup.dataset, setup.recipe))
    except UserError:
        return 0.0


def _files(trainer: Rehearsed) -> tuple[float, float]:
    """Return the seconds to write (a checkpoint, the best weights). Writing weights is measured; the time of a
    checkpoint is estimated from it by size of the files.
    """
    tensors = weights(trainer.model, trainer.setup.task.wide)
    path = trainer.setup.folder / f".rehearsal{PARTIAL}"

    def write() -> None:
        with clear_errors(str(path)):
            write_tensors(path, tensors, {})

    def measured() -> float:
        try:
            return _seconds(write)
        finally:
            path.unlink(missing_ok=True)

    best = trainer.world.lead(measured)
    size = sum(tensor.nbytes for tensor in tensors.values())
    remembered = sum(tensor.nbytes for tensor in trainer.optimizer.state_dict().values())
    return best * (size + remembered) / max(1, size), best


def _evaluations(trainer: Rehearsed) -> float:
    """Estimate the seconds of the final evaluation on all held-out splits and of fitting the wide path again; 0 if the
    task has no final evaluation.
    """
    if not trainer.setup.task.evaluates:
        return 0.0
    return trainer.setup.wide_seconds + sum(_evaluation(trainer, split) for split in held_out(trainer.setup.dataset))


def _evaluation(trainer: Rehearsed, split: str) -> float:
    """Estimate the seconds of the final evaluation on one split from small samples of its rows; 0 if it fails, which
    the evaluation itself will report.
    """
    setup, dataset, task = trainer.setup, trainer.setup.dataset, trainer.setup.task

    def take(part: Dataset) -> float:
        with merged(trainer.model):
            return _seconds(lambda: evaluate_split(trainer.model, task, part, setup.recipe, split))

    try:
        if not (isinstance(dataset, ExampleDataset) and isinstance(task, ExampleTask)):
            return take(dataset)
        few, many = (min(1.0, rows / len(dataset.records[split])) for rows in _ROWS)
        take(task.part(dataset, few))  # not timed: ops choose their implementations
        small = take(task.part(dataset, few))
        large = take(task.part(dataset, many))
    except UserError:
        return 0.0
    return large if few == many else large + max(0.0, large - small) * (1 - many) / (many - few)


def _seconds(work: Callable[[], object]) -> float:
    began = clock.seconds()
    work()
    return clock.seconds() - began
