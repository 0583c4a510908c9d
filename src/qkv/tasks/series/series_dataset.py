"""Batches of windows of time series."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch

from qkv.data.batching.batch import INPUT, Batch
from qkv.data.batching.examples import ExampleRows, in_order
from qkv.data.batching.rows import random
from qkv.data.corpora.corpus import TRAIN
from qkv.data.series.read import Panel
from qkv.data.series.windows import Cutter, ScaledSeries, Windows, scaled
from qkv.data.vocabulary import Vocabulary
from qkv.layers.signal import Signal
from qkv.layers.times import TimedSignal
from qkv.spec.errors import Problem, SpecError
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe
from qkv.spec.signals.series import OfSeries, Series
from qkv.system.errors import UserError
from qkv.tasks.dataset import HELD_OUT, OTHER, Dataset

_WAYS_OUT = ("give other task.parts", "give a table with values")


class SeriesDataset(Dataset):
    """Windows of series, cut when a batch is formed; a batch row is a window or a single channel of a window."""

    def __init__(
        self,
        recipe: Recipe,
        panel: Panel,
        processor: Series,
        parts: Mapping[str, tuple[int, int]],
        notes: tuple[str, ...] = (),
    ):
        self.recipe, self.panel, self.processor, self.name = recipe, panel, processor, panel.name
        self.vocabulary = Vocabulary(processors={INPUT: processor})
        self.series: tuple[ScaledSeries, ...] = scaled(panel, processor)
        task, training = recipe.task, recipe.training
        self._parts = parts
        self.cutters = {
            name: Cutter(self.series, part, task.context, task.horizon)  # type: ignore[attr-defined]
            for name, part in parts.items()
        }
        self.notes = (*notes, *self._check())
        self.baselines: dict[str, Any] | None = None
        """Fitted baselines by name; None until they are needed."""
        self._seed, self._batch_size = training.seed, training.batch_size
        count = len(self.cutters[TRAIN]) if TRAIN in self.cutters else 0
        ones = np.ones(count, np.int64)
        self._rows = ExampleRows(ones, recipe.data.batching, training.batch_size, training.seed) if count else None

    def _check(self) -> list[str]:
        """Return a note on series that are too short to train on.

        Raises ``UserError`` for a split without a window or without a target.
        """
        task: Any = self.recipe.task
        for name, cutter in self.cutters.items():
            if not len(cutter):
                longest = max(len(each.values) for each in self.series)
                raise UserError(
                    f"the {name} split of {self.name} has no window of {task.context} + {task.horizon} steps (the "
                    f"longest series has {longest:,}); give a smaller task.context or task.horizon, or other task.parts"
                )
            if not cutter.targets:
                raise UserError(f"{self._part(name)} has no value to predict; {_WAYS_OUT[name == OTHER]}")
        short = self.cutters[TRAIN].left_out if TRAIN in self.cutters else []
        if not short:
            return []
        names = ", ".join(map(repr, short[:3])) + (f" and {len(short) - 3} more" if len(short) > 3 else "")
        return [f"{len(short)} of {len(self.series)} series are too short to train on: {names}"]

    def _part(self, name: str) -> str:
        """Format the name of a split and its first and last time stamps, for messages."""
        low, end = self._parts[name]
        return f"the {name} split of {self.name} ({self.panel.when(low)} to {self.panel.when(end - 1)})"

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.cutters)

    @cached_property
    def reader(self) -> OfSeries:
        """Front end that reads the windows."""
        return reader_of(self.recipe.model)

    @property
    def steps(self) -> int:
        """Number of steps of a window that the model reads."""
        task: Any = self.recipe.task
        return steps_read(task.context, task.dropped)

    def batch(self, step: int) -> Batch:
        assert self._rows is not None, "there is no training part"
        return self.collated(self.windows(TRAIN, self._rows.of_step(step), step))

    def rows(self, split: str, batches: int | None = None) -> Iterator[Batch]:
        for windows in self.each(split, batches):
            yield self.collated(windows)

    def each(self, split: str, batches: int | None = None) -> Iterator[Windows]:
        """Yield the windows of a split in a fixed order, in batches; see ``rows``."""
        ones = np.ones(len(self.cutters[self.checked(split)]), np.int64)
        for number, index in enumerate(in_order(ones, self._batch_size, batches)):
            yield self.windows(split, index, HELD_OUT + number)

    def windows(self, split: str, numbers: np.ndarray, key: int) -> Windows:
        """Cut the windows ``numbers`` of a split. ``key``: random-number key for the steps that are left out."""
        timed = getattr(self.reader, "frequencies", 0) > 0
        return self.cutters[split].cut(numbers, self.steps, random(self._seed, key), timed)

    def collated(self, windows: Windows) -> Batch:
        """Collate windows to a batch with targets (B, C, H), NaN where missing; C = 1 if each channel is a row."""
        future = torch.from_numpy(windows.future.swapaxes(1, 2).copy())
        if self.reader.rows_per_channel:
            future = future.flatten(0, 1)[:, None]
        signal, ahead = signals(windows, self.recipe.model, self.reader, self.processor)
        count = int(np.isfinite(windows.future).sum())
        return Batch.of(signal, future, count=count) if ahead is None else Batch.of(ahead, future, signal, count=count)

    def digest(self) -> str:
        task: Any = self.recipe.task
        settings = repr((task.context, task.horizon, tuple(task.parts), task.dropped))
        return hashlib.sha256((self.panel.digest() + settings).encode()).hexdigest()

    @property
    def epoch_targets(self) -> int:
        task: Any = self.recipe.task
        return len(self.cutters[TRAIN]) * task.horizon * len(self.processor.channels)


def reader_of(model: Model) -> OfSeries:
    """Return the front end that reads the windows: the encoder's if the model has an encoder."""
    frontend = (model.encoder or model).frontend
    assert isinstance(frontend, OfSeries)
    return frontend


def steps_read(context: int, dropped: float) -> int:
    """Return the number of steps of a window that remain when a fraction ``dropped`` is left out."""
    return max(1, round(context * (1 - dropped)))


def signals(windows: Windows, model: Model, reader: OfSeries, processor: Series) -> tuple[Signal, Signal | None]:
    """Build (signal of the windows, signal of the future steps for the decoder, or None without an encoder).

    Without an encoder, each step gets the covariates of one horizon later, so that the model reads future covariates.
    """
    values, context = windows.read, windows.past.shape[1]
    shift = 0 if model.encoder else windows.known.shape[1] - context
    covariates = np.take_along_axis(windows.known, windows.kept[..., None] + shift, 1)
    times, ahead = windows.times, windows.known[:, context:]
    if reader.rows_per_channel:
        count = values.shape[2]
        values = values.swapaxes(1, 2).reshape(-1, values.shape[1], 1)
        covariates, times, ahead = (np.repeat(each, count, 0) for each in (covariates, times, ahead))
    joined = torch.from_numpy(np.concatenate((values, covariates), 2))
    timed = getattr(reader, "frequencies", 0) > 0
    signal = TimedSignal(joined, times=torch.from_numpy(np.ascontiguousarray(times)) if timed else None)
    return signal, None if model.encoder is None else Signal(torch.from_numpy(np.ascontiguousarray(ahead)))


def with_windows(recipe: Recipe, processor: Series) -> Recipe:
    """Return a copy of a recipe with the sizes of its windows filled in.

    Raises ``SpecError`` if the recipe sets other sizes.
    """
    task: Any = recipe.task
    model = recipe.model
    steps, path = steps_read(task.context, task.dropped), ("model", *(("encoder",) if model.encoder else ()))
    reader = _sized(reader_of(model), processor, steps, (*path, "frontend"))
    positions = reader.num_positions or 1
    if model.encoder:
        ahead = model.frontend
        assert isinstance(ahead, OfSeries)
        ahead = _sized(ahead, processor, task.horizon, ("model", "frontend"))
        encoder = model.encoder.changed(frontend=reader, context_length=positions)
        model = model.changed(frontend=ahead, encoder=encoder, context_length=task.horizon)
    else:
        model = model.changed(frontend=reader, context_length=positions)
    if recipe.wide is not None and task.dropped and not getattr(reader, "frequencies", 0):
        sentence = "the linear map needs the times of the values if some steps are left out; set frontend.frequencies"
        raise SpecError([Problem(("wide",), sentence)])
    channels = 1 if reader.rows_per_channel else len(processor.channels)
    try:
        joined = model.num_outputs or model.context_length
        head = model.head.of_window(task.horizon, channels, joined)  # type: ignore[attr-defined]
    except SpecError as error:
        raise SpecError([problem.under("model", "head") for problem in error.problems]) from None
    wide = recipe.wide and recipe.wide.of_window(task.context)
    return recipe.changed(model=model.changed(head=head), wide=wide)


def _sized(frontend: OfSeries, processor: Series, steps: int, path: tuple[str, ...]) -> OfSeries:
    try:
        return frontend.fitted(processor).of_steps(steps)
    except SpecError as error:
        problems: list[Problem] = [problem.under(*path) for problem in error.problems]
        raise SpecError(problems) from None
