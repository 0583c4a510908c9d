"""Forecasting baselines: the last value, the value one season before, and a linear model of the window (DLinear)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.data.batching.rows import random
from qkv.data.corpora.corpus import TRAIN, VALIDATION
from qkv.data.series.windows import Windows
from qkv.layers.times import WINDOW_EPS
from qkv.models.heads.forecasts import Forecast, build_forecast
from qkv.spec.models.forecasts import Point
from qkv.tasks.series.forecast_errors import Errors, errors
from qkv.tasks.series.series_dataset import SeriesDataset

KERNEL = 25
"""Steps of the moving average of DLinear."""
REPEAT, SEASONAL, LINEAR = "repeat_last", "seasonal", "dlinear"
_EPOCHS, _FEWEST, _MOST, _LOOKS = 10, 300, 3000, 15
_ROWS, _RATE = 224, 2e-3
_ERRORS = 300_000
"""Approximate number of errors to which the intervals of a baseline are fitted."""
_HELD_OUT = 40
"""Number of validation batches on which DLinear is evaluated during its training."""


class Affine(NamedTuple):
    """Affine map of windows (…, T) to point forecasts (…, H): x W + b."""

    table: Tensor
    bias: Tensor

    def __call__(self, past: Tensor) -> Tensor:
        """Compute the point forecasts (…, H) of windows (…, T)."""
        return past @ self.table + self.bias


class DLinear(nn.Module):
    """DLinear (Zeng et al. 2023): y = W_s (x - m) + W_t m + b, m the moving average of x over 25 steps.

    windows (…, T) -> (…, H, Q). All channels share one pair of maps. For m, x is padded by repeating its first and last
    value.
    """

    def __init__(self, context: int, horizon: int, outputs: int = 1):
        super().__init__()
        self.horizon, self.outputs = horizon, outputs
        self.season, self.trend = (nn.Linear(context, horizon * outputs) for _ in range(2))
        for layer in (self.season, self.trend):
            nn.init.constant_(layer.weight, 1 / context)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        mean = moving_average(x)
        return (self.season(x - mean) + self.trend(mean)).unflatten(-1, (self.horizon, self.outputs))

    def affine(self) -> Affine:
        """Return the same map as x W + b with W (T, H · Q)."""
        bias = self.season.bias + self.trend.bias
        mean = moving_average(torch.eye(self.season.in_features).to(bias))  # row t: moving average of a unit pulse at t
        return Affine(self.season.weight.T - mean @ (self.season.weight - self.trend.weight).T, bias)


def moving_average(x: Tensor) -> Tensor:
    """Compute the moving average of x (…, T) over 25 steps; x is padded with its first and last value."""
    rows, side = x.reshape(-1, 1, x.shape[-1]), KERNEL // 2
    return F.avg_pool1d(F.pad(rows, (side, side), mode="replicate"), KERNEL, 1).view(x.shape)


def repeated(context: int, horizon: int, back: int) -> Affine:
    """Build the baseline that repeats the last ``back`` values: 1 for the last value, else the last season."""
    steps = torch.arange(horizon)
    table = torch.zeros(context, horizon)
    table[context - back + steps % back, steps] = 1
    return Affine(table, torch.zeros(horizon))


def fit_linear(dataset: SeriesDataset, form: Forecast, outputs: int, normalised: bool) -> DLinear:
    """Train DLinear on the training windows by Adam; return the weights of least loss on the validation split.

    ``form``: defines the loss, on standardised values; ``outputs``: number of outputs per value; ``normalised``: each
    window is standardised by its own mean and deviation, and the forecast transformed back.
    """
    task = dataset.recipe.task
    context, horizon = task.context, task.horizon  # type: ignore[attr-defined]
    model, seed = DLinear(context, horizon, outputs), dataset.recipe.training.seed
    count, channels = len(dataset.cutters[TRAIN]), len(dataset.processor.channels)
    batch = max(1, _ROWS // channels)
    steps = min(_MOST, max(_FEWEST, _EPOCHS * count // batch))
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    held_out = [_triple(windows, normalised) for windows in dataset.each(VALIDATION, _HELD_OUT)]
    best, weights = math.inf, {name: value.clone() for name, value in model.state_dict().items()}
    with torch.enable_grad():
        for step in range(steps):
            rng = random(seed, _KEY + step)
            windows = dataset.windows(TRAIN, rng.integers(count, size=batch), _KEY + step)
            loss, seen = linear_loss(model, form, *_triple(windows, normalised))
            optimizer.zero_grad()
            (loss / max(1, seen)).backward()
            optimizer.step()
            schedule.step()
            if (step + 1) % max(1, steps // _LOOKS) == 0 or step + 1 == steps:
                with torch.no_grad():
                    losses = [linear_loss(model, form, *triple) for triple in held_out]
                count_seen = sum(seen for _, seen in losses)
                total = sum(float(loss) for loss, _ in losses) / count_seen if count_seen else math.inf
                if total < best:
                    best, weights = total, {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(weights)
    return model.requires_grad_(False)


_KEY = 1 << 62
"""First random-number key of the batches of a linear model, larger than all training steps."""


def dataset_pair(windows: Windows) -> tuple[Tensor, Tensor]:
    """Return (windows (B, C, T) with left-out steps filled forward, targets (B, C, H))."""
    past = windows.filled if windows.gaps else windows.past
    return _channels_first(past), _channels_first(windows.future)


def _channels_first(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values.swapaxes(1, 2)))


def level(windows: Windows) -> tuple[Tensor, Tensor]:
    """Compute (mean, deviation), (B, C), of the values that the model reads, as in front end ``series_patches``."""
    read = _channels_first(windows.read if windows.gaps else windows.past)
    return read.mean(-1), (read.var(-1, correction=0) + WINDOW_EPS).sqrt()


Levels = tuple[Tensor, Tensor]


def _triple(windows: Windows, normalised: bool) -> tuple[Tensor, Tensor, Levels | None]:
    """Return (windows, targets, (mean, deviation) to standardise the windows, or None if not ``normalised``)."""
    return *dataset_pair(windows), level(windows) if normalised else None


def linear_loss(
    model: DLinear, form: Forecast, past: Tensor, future: Tensor, levels: Levels | None
) -> tuple[Tensor, int]:
    """Compute (summed loss, number of targets) of a linear model."""
    shift, scale = levels or (torch.zeros_like(past[..., 0]), torch.ones_like(past[..., 0]))
    outputs = model((past - shift[..., None]) / scale[..., None])
    restored, seen = form.restored(outputs, shift[..., None], scale[..., None]), ~future.isnan()
    return torch.where(seen, form.loss(restored, future.nan_to_num()), 0).sum(), int(seen.sum())


def predictors(dataset: SeriesDataset) -> dict[str, Affine]:
    """Return the baselines of a data set by name; the first call trains DLinear, if there is a training split."""
    if dataset.baselines is None:
        task: Any = dataset.recipe.task
        period = dataset.processor.period
        baselines = {REPEAT: repeated(task.context, task.horizon, 1)}
        if period is not None and period <= task.context:
            baselines[SEASONAL] = repeated(task.context, task.horizon, period)
        if TRAIN in dataset.splits:
            baselines[LINEAR] = fit_linear(dataset, build_forecast(Point()), 1, False).affine()
        dataset.baselines = baselines
    return dataset.baselines


@torch.no_grad()
def with_intervals(dataset: SeriesDataset, points: Affine, form: Forecast, outputs: int) -> Affine:
    """Extend the point forecasts ``points`` to all outputs of a head of this ``form``, for standardised windows.

    The map reads z = (x, μ/σ, 1/σ), as ``qkv.models.wide.LinearWindow``, and returns (H · Q): x is the standardised
    window, μ and σ its mean and deviation. The intervals are computed from the errors of ``points`` on some training
    windows, relative to σ.
    """
    context, horizon = points.table.shape
    table = torch.zeros(context + 2, horizon, outputs)
    table[:context, :, : form.locations] = points.table[..., None]
    table[context, :, : form.locations] = points.table.sum(0)[:, None] - 1
    table[context + 1, :, : form.locations] = points.bias[:, None]
    count = len(dataset.cutters[TRAIN])
    most = min(count, max(1, _ERRORS // (horizon * len(dataset.processor.channels))))
    numbers = np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))
    windows = dataset.windows(TRAIN, numbers, _KEY)
    past, future = dataset_pair(windows)
    relative = (future - points(past)) / level(windows)[1][..., None]
    return Affine(table.flatten(1), form.around(relative.flatten(0, 1)).flatten())


@torch.no_grad()
def baseline_errors(dataset: SeriesDataset, split: str) -> dict[str, Errors]:
    """Compute the errors of all baselines on a split, by name."""
    by_name: dict[str, Errors] = {}
    for windows in dataset.each(split):
        past, future = dataset_pair(windows)
        for name, predict in predictors(dataset).items():
            seen = errors(predict(past), future)
            by_name[name] = by_name[name] + seen if name in by_name else seen
    return by_name
