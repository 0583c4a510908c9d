"""Windows of series: inputs of ``context`` steps and targets of ``horizon`` steps, cut on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from qkv.data.cells.steps import calendar
from qkv.data.corpora.corpus import TEST, TRAIN, VALIDATION
from qkv.data.series.read import OneSeries, Panel
from qkv.spec.signals.series import Series
from qkv.system.errors import UserError


class ScaledSeries(NamedTuple):
    """One series, standardised.

    ``values`` (T, C) and ``known`` (T + …, K): filled forward; ``seen`` (T, C): False where a value is missing;
    ``places`` (T + …): time of each step, in steps.
    """

    name: str
    first: int
    values: np.ndarray
    seen: np.ndarray
    known: np.ndarray
    places: np.ndarray


class Windows(NamedTuple):
    """B windows, standardised.

    ``past`` (B, T, C): inputs; ``known`` (B, T + H, K): covariates; ``future`` (B, H, C): targets, NaN where a value is
    missing. ``kept`` (B, S): indices of the steps that the model reads; ``times`` (B, S): their times in units of the
    context, 0 at the last step.
    """

    past: np.ndarray
    known: np.ndarray
    future: np.ndarray
    kept: np.ndarray
    times: np.ndarray

    @property
    def gaps(self) -> bool:
        """True if the model does not read all steps of the context."""
        return self.kept.shape[1] < self.past.shape[1]

    @property
    def read(self) -> np.ndarray:
        """Values (B, S, C) that the model reads."""
        return np.take_along_axis(self.past, self.kept[..., None], 1)

    @property
    def filled(self) -> np.ndarray:
        """Values (B, T, C) of every step as far as the model knows them: a step that it does not read repeats the last
        step read before.
        """
        steps = np.arange(self.past.shape[1])
        before = np.stack([np.searchsorted(places, steps, side="right") - 1 for places in self.kept])
        index = np.take_along_axis(self.kept, before.clip(min=0), 1)
        return np.take_along_axis(self.past, index[..., None], 1)


def borders(panel: Panel, parts: Sequence[float]) -> dict[str, tuple[int, int]]:
    """Return the steps (first, end) of the training, validation and test splits on the common grid.

    ``parts``: size of each split, in order of time, as fractions of the series or as numbers of steps. Raises
    ``UserError`` if the series are shorter than the splits together.
    """
    low = min(each.first for each in panel.series)
    total = max(each.first + each.length for each in panel.series) - low
    counts = [part * total if max(parts) <= 1 else part for part in parts]
    ends = [round(sum(counts[: i + 1])) for i in range(len(counts))]
    if ends[-1] > total:
        raise UserError(f"task.parts: the splits need {ends[-1]:,} steps, but {panel.name} has {total:,}; give fewer")
    names = (TRAIN, VALIDATION, TEST)
    return {name: (low + a, low + b) for name, a, b in zip(names, [0, *ends], ends, strict=False)}


def fitted(panel: Panel, spec: Series, end: int, period: int | None) -> Series:
    """Return the processor with the columns, the step, and the mean and standard deviation of all steps before
    ``end``.
    """
    past = [each.values[: max(0, end - each.first)] for each in panel.series]
    covariates = [each.known[: max(0, end - each.first)] for each in panel.series]
    means, deviations = [], []
    for name, rows in (*_by_column(panel.columns.channels, past), *_by_column(panel.columns.known, covariates)):
        seen = rows[~np.isnan(rows)]
        if not len(seen):
            raise UserError(f"the column {name!r} of {panel.name} has no number in the training split")
        means.append(float(seen.mean()))
        deviation = float(seen.std())
        deviations.append(deviation if deviation > 1e-12 * max(1.0, abs(means[-1])) else 1.0)
    columns = panel.columns
    fields = {"time": columns.time, "series": columns.series, "channels": columns.channels, "known": columns.known}
    fields |= {"unit": panel.step.unit, "step": panel.step.size, "period": period, "weekdays": panel.step.weekdays}
    fields |= {"dates": None if columns.time is None else panel.form.name}
    if spec.calendar and not panel.form.dates:
        raise UserError("data.processor.calendar: the series have no dates; leave it out")
    return spec.changed(**fields, mean=means, deviation=deviations)


def _by_column(names: Sequence[str], rows: Sequence[np.ndarray]) -> list[tuple[str, np.ndarray]]:
    joined = np.concatenate(rows) if rows else np.zeros((0, len(names)))
    return [(name, joined[:, j]) for j, name in enumerate(names)]


def scaled(panel: Panel, processor: Series) -> tuple[ScaledSeries, ...]:
    """Standardise the series with the processor's mean and deviation; fill gaps forward, and gaps at the beginning
    backward.
    """
    return tuple(_scaled(panel, each, processor) for each in panel.series)


def _scaled(panel: Panel, each: OneSeries, processor: Series) -> ScaledSeries:
    mean, deviation = np.array(processor.mean), np.array(processor.deviation)
    count = len(processor.channels)
    values = (each.values - mean[:count]) / deviation[:count]
    covariates = (each.known - mean[count:]) / deviation[count:]
    if processor.calendar:
        covariates = np.concatenate((covariates, calendar(each.local)), 1)
    places = (
        panel.step.places(each.stamps)
        if panel.step.unit not in ("months", "weekdays")
        else np.arange(len(each.stamps), dtype=float)
    )
    seen = ~np.isnan(values)
    parts = (filled(values).astype(np.float32), seen, filled(covariates).astype(np.float32))
    return ScaledSeries(each.name, each.first, *parts, places)


def filled(values: np.ndarray) -> np.ndarray:
    """Replace each NaN in the values (T, C) by the last number before it, else by the first number; by 0 if there is
    none.
    """
    seen = ~np.isnan(values)
    index = np.where(seen, np.arange(len(values))[:, None], 0)
    np.maximum.accumulate(index, axis=0, out=index)
    previous = np.take_along_axis(values, index, 0) if len(values) else values
    first = np.take_along_axis(values, seen.argmax(0)[None], 0) if len(values) else values
    return np.nan_to_num(np.where(np.isnan(previous), first, previous)) if len(values) else values


class Cutter:
    """Windows of all series, numbered series by series, and by time within a series.

    All targets are steps of the split ``part``, (first, end) on the common grid. Inputs may begin before the split,
    except in the training split, which begins with the series. ``left_out``: names of series that are too short for a
    window.
    """

    def __init__(self, series: Sequence[ScaledSeries], part: tuple[int, int], context: int, horizon: int):
        self.series, self.context, self.horizon = series, context, horizon
        low, end = part
        starts = [max(context, low - each.first) for each in series]  # first target of the first window
        lasts = [min(len(each.values), end - each.first) - horizon for each in series]
        self.counts = np.array([max(0, last - start + 1) for start, last in zip(starts, lasts, strict=True)])
        self._starts, self._ends = np.array(starts) - context, np.cumsum(self.counts)
        self.left_out = [each.name for each, count in zip(series, self.counts, strict=True) if not count]

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def targets(self) -> int:
        """Number of values of the split that are a target of a window."""
        places = zip(self.series, self._starts + self.context, self.counts + self.horizon - 1, self.counts, strict=True)
        return sum(int(each.seen[start : start + count].sum()) for each, start, count, windows in places if windows)

    def place(self, number: int) -> tuple[int, int]:
        """Return (index of the series, first step) of a window."""
        which = int(np.searchsorted(self._ends, number, side="right"))
        before = int(self._ends[which - 1]) if which else 0
        return which, int(self._starts[which]) + number - before

    def cut(self, numbers: np.ndarray, steps: int, rng: np.random.Generator, observed: bool) -> Windows:
        """Cut windows; the model reads ``steps`` steps of their context, drawn by ``rng`` if the context is longer.

        ``observed``: leave out steps without any value first.
        """
        places = [self.place(int(number)) for number in numbers]
        return cut(self.series, places, (self.context, self.horizon), steps, rng, observed)


def cut(
    series: Sequence[ScaledSeries],
    places: Sequence[tuple[int, int]],
    lengths: tuple[int, int],
    steps: int,
    rng: np.random.Generator,
    observed: bool,
) -> Windows:
    """Cut windows of ``lengths`` (context, horizon) at ``places``, pairs (series, first step); other parameters as in
    ``Cutter.cut``.

    Targets after the end of a series are NaN; covariates after their end repeat the last step.
    """
    context, horizon = lengths
    past = np.stack([series[i].values[start : start + context] for i, start in places])
    future = np.full((len(places), horizon, past.shape[2]), np.nan, np.float32)
    covariates_ahead = np.zeros((len(places), context + horizon, series[0].known.shape[1]), np.float32)
    seen = np.stack([series[i].seen[start : start + context].any(1) for i, start in places])
    at = np.stack([series[i].places[start : start + context] for i, start in places])
    for row, (i, start) in enumerate(places):
        each = series[i]
        target = each.values[start + context : start + context + horizon]
        future[row, : len(target)] = np.where(each.seen[start + context :][:horizon], target, np.nan)
        if covariates_ahead.shape[2]:
            covariates = each.known[start : start + context + horizon]
            covariates_ahead[row, : len(covariates)] = covariates
            covariates_ahead[row, len(covariates) :] = covariates[-1]
    indices = np.broadcast_to(np.arange(context), (len(places), context))
    if steps < context or (observed and not seen.all()):
        order = rng.random(seen.shape) + (~seen if observed else 0)
        indices = np.sort(np.argsort(order, 1, kind="stable")[:, :steps], 1)
    times = np.take_along_axis(at - at[:, -1:], indices, 1) / context
    return Windows(past, covariates_ahead, future, indices, times.astype(np.float32))
