"""Choose a recipe for time series: context length, splits, model and training length."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import short_form, training_of
from qkv.data.series.read import Panel, read_panel
from qkv.data.series.seasons import guess_period
from qkv.data.series.windows import filled
from qkv.report.figures import counted
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.data import RandomCrops
from qkv.spec.files.overrides import assignments
from qkv.spec.heads import ForecastHead
from qkv.spec.masks import Full
from qkv.spec.model import Block, Model
from qkv.spec.models.forecasts import Quantiles
from qkv.spec.models.wide import LinearWindow
from qkv.spec.recipe import Recipe
from qkv.spec.signals.series import Series, SeriesPatches
from qkv.spec.tasks import Forecasting
from qkv.system.errors import UserError

_LONGEST, _SHORTEST = 512, 4
"""Maximum and minimum number of steps of the context."""
_PERIODS, _HORIZONS = 4, 3
"""Minimum length of the context, as a number of seasonal periods and of horizons."""
_EPOCHS, _MOST = 30, 4000
_PARTS, _FEW = (0.7, 0.1, 0.2), 0.5
"""Fractions of the steps in the training, validation and test split; minimum fraction of a split's steps that have a
value.
"""
_ROWS = 256
"""Approximate number of rows per batch: windows times channels."""


class _Lengths(NamedTuple):
    """Numbers of steps of the longest series, of the context, of the horizon and of the splits (``parts``); approximate
    number of training windows.
    """

    series: int
    context: int
    horizon: int
    parts: tuple[float, ...]
    windows: int


@chooses(Forecasting)
def choose_forecast(request: RecipeRequest) -> Recipe:
    """Choose a recipe that forecasts the series of a table.

    The model is a Transformer over patches of each channel (PatchTST, Nie et al. 2023) that predicts quantiles,
    combined with a linear map of the window (DLinear). The run keeps the best of both, their mixtures, and naive
    forecasts on the validation split. Context: the largest of four seasons, three horizons and 32 steps, at most as
    many as the length of the series allows. Horizon, unless an override sets it: a season, else 24 steps.

    Raises ``UserError`` for an unusable table, or series too short for the horizon.
    """
    data = request.data
    panel = read_panel(data)
    training_share = [each.values[: round(0.7 * len(each.values))] for each in panel.series]
    period = guess_period([filled(values) for values in training_share], panel.step)
    named = {change.path: change.value for change in assignments(request.changes)}
    lengths = _lengths(panel, period, named.get(("task", "horizon")), named.get(("task", "context")))
    channels = len(panel.columns.channels)
    model = _model(lengths, channels)
    rows = max(4, min(64, _ROWS // channels))
    training = training_of(lengths.windows, rows, _EPOCHS, most=_MOST, final=0.02, validated=40, validations=15)
    size = f"{len(panel.series):,} series of up to {lengths.series:,} steps"
    width = f"patches of {lengths.context} steps, {counted(model.num_layers or 1, 'layer')} of width {model.width}"
    return Recipe(
        description=f"{size}, {width}, beside DLinear{_moved(lengths.parts)}: chosen for this data and this machine.",
        data=data.changed(processor=data.processor or Series(), batching=RandomCrops()),
        model=model,
        wide=LinearWindow(),
        task=Forecasting(context=lengths.context, horizon=lengths.horizon, parts=lengths.parts),
        training=training,
        quick=short_form(training.steps),
    )


def _lengths(panel: Panel, period: int | None, horizon: Any, context: Any) -> _Lengths:
    """Choose the lengths. ``period``: steps per season; ``horizon``, ``context``: values set by the user; each may be
    None. Raises ``UserError`` if the series are too short.
    """
    longest = max(each.length for each in panel.series)
    low = min(each.first for each in panel.series)
    total = max(each.first + each.length for each in panel.series) - low
    ahead = horizon if isinstance(horizon, int) and horizon > 0 else min(period or 24, max(1, longest // 10))
    validation, test = max(round(0.1 * total), ahead), max(round(0.2 * total), ahead)
    rest = total - validation - test
    most = (rest - ahead) // 2  # longest context that leaves as many windows as it has steps
    target = min(_LONGEST, max(_PERIODS * (period or 0), _HORIZONS * ahead, 32))
    length = context if isinstance(context, int) and context > 0 else min(target, most)
    if length < _SHORTEST:
        raise UserError(
            f"{panel.name}: the longest series has {longest:,} steps, too few to learn to forecast {ahead} "
            f"(at least {3 * ahead + 2 * _SHORTEST} are required); give more data, or a smaller task.horizon"
        )
    parts = (rest, validation, test) if validation == ahead or test == ahead else _shares(panel, low, total, ahead)
    windows = sum(max(0, round(0.7 * each.length) - length - ahead) for each in panel.series)
    return _Lengths(longest, length, ahead, parts, max(1, windows))


def _shares(panel: Panel, low: int, total: int, ahead: int) -> tuple[float, ...]:
    """Choose the sizes of the splits, as fractions of the steps. If most steps of a split have no value, return numbers
    of steps instead, which divide the steps that have a value in the same proportions.

    ``low``: first step of all series; ``total``: number of steps; each split has at least ``ahead`` steps.
    """
    seen = np.zeros(total, bool)
    for each in panel.series:
        seen[each.first - low :][: each.length] |= ~np.isnan(each.values).all(1)
    ends = [round(share * total) for share in np.cumsum(_PARTS)]
    if all(seen[a:b].mean() > _FEW for a, b in itertools.pairwise([0, *ends])):
        return _PARTS
    places = np.flatnonzero(seen)
    ends = [int(places[min(len(places) - 1, round(share * len(places)))]) for share in np.cumsum(_PARTS[:2])]
    sizes = (ends[0], max(ahead, ends[1] - ends[0]))
    return (*sizes, total - sum(sizes)) if total - sum(sizes) >= ahead else _PARTS


def _moved(parts: tuple[float, ...]) -> str:
    """Describe the splits in a clause if their sizes are numbers of steps; "" if they are fractions."""
    steps = ", ".join(f"{part:,}" for part in parts[:2])
    return f", splits of {steps} and {parts[2]:,} steps" if max(parts) > 1 else ""


def _model(lengths: _Lengths, channels: int) -> Model:
    values = lengths.windows * channels
    width, layers = next((size for most, size in ((2_000, (16, 2)), (20_000, (32, 2))) if values < most), (64, 3))
    patch = min(16, max(2, lengths.context // 6))
    attention = Attention(num_heads=max(1, width // 16), mask=Full())
    dropout = 0.3 if values < 100_000 else 0.2
    return Model(
        width=width,
        num_layers=layers,
        frontend=SeriesPatches(patch=patch, stride=max(1, patch // 2), dropout=dropout),
        blocks=(Block(branches=(attention, FeedForward(hidden=2 * width)), dropout=dropout),),
        head=ForecastHead(over="flatten", form=Quantiles(), dropout=dropout),
    )
