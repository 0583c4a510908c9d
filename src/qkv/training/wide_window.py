"""Wide path of forecasts: DLinear, fitted before the deep path is trained, and the choice between both paths, their
means and the baselines afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import torch

from qkv.data.batch import Batch
from qkv.data.corpus import TEST, VALIDATION
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.models.wide import LinearWindow
from qkv.ops.linear.precision import autocast
from qkv.tasks.forecasting import ForecastingTask
from qkv.tasks.series_baselines import LINEAR, REPEAT, SEASONAL, Affine, fit_linear, predictors, with_intervals
from qkv.tasks.series_dataset import SeriesDataset
from qkv.tasks.task import Totals
from qkv.training.contestants import Contestant, ranked

NORMALISED = "normalised DLinear"
"""Name of the wide path: DLinear on standardised windows, trained on the loss of the head."""
_BASELINES = {LINEAR: "DLinear", REPEAT: "repeat last", SEASONAL: "seasonal naive"}


class _Side(NamedTuple):
    """Contestant by its parts: the factor of the deep path, and the linear maps whose mean is the wide path."""

    name: str
    deep: float
    maps: tuple[str, ...]


def fit_window(model: Transformer, dataset: SeriesDataset) -> list[str]:
    """Train the wide path of a model of forecasts, on the loss of its head; return notices."""
    head: Any = model.head
    own = fit_linear(dataset, head.form, head.each, True).affine()
    _set(model, Affine(torch.nn.functional.pad(own.table, (0, 0, 0, 2)), own.bias), 1.0, 0.0)
    return ["the linear path (DLinear on standardised windows) is trained"]


def join_window(
    model: Transformer,
    task: ForecastingTask,
    dataset: SeriesDataset,
    precision: str,
    stop: Callable[[], bool],
    name: str,
) -> list[Contestant] | None:
    """Choose between the deep path, linear maps and their means by the validation part; return all contestants, the
    best first, with their errors on the test part too, if there is one. None if ``stop`` returned True.

    Linear maps: the wide path, and all baselines, whose point forecasts are those that the evaluation reports, with
    intervals fitted to the training part. Means are those of the deep path, the wide path and DLinear. Of the
    contestants whose error is not above that of any baseline, the one of least loss is chosen.
    """
    wide, head, device = model.wide, model.head, model.device
    assert isinstance(wide, LinearWindow)
    form, each = head.form, head.each  # type: ignore[union-attr]
    maps = {NORMALISED: Affine(wide.table.detach().clone(), wide.bias.detach().clone())}
    for kind, points in predictors(dataset).items():
        found = with_intervals(dataset, points, form, each)
        maps[_BASELINES[kind]] = Affine(*(part.to(device) for part in found))
    sides, figures = _sides(name, maps), dict[str, list[dict[str, float]]]()
    for split in (VALIDATION, TEST):
        if split in dataset.splits:
            totals = _totals(model, task, dataset.rows(split), sides, maps, (precision, stop))
            if totals is None:
                return None
            figures[split] = [task.figures(each, dataset.scale(split)) for each in totals]
    tested = figures.get(TEST, [{}] * len(sides))
    contestants = [
        Contestant(side.name, side.deep, 1 - side.deep, own, other)
        for side, own, other in zip(sides, figures[VALIDATION], tested, strict=True)
    ]
    baselines = [each.figures[task.metric] for each in contestants if each.name in _BASELINES.values()]
    order = ranked(contestants, task.metric, min(baselines))
    best = sides[contestants.index(order[0])]
    _set(model, _mean([maps[map_name] for map_name in best.maps or (NORMALISED,)]), best.deep, 1 - best.deep)
    return order


def _sides(name: str, maps: Mapping[str, Affine]) -> list[_Side]:
    """All contestants: single ones, then the means of the deep path called ``name``, the wide path, and DLinear."""
    linear = [_Side(label, 0.0, (label,)) for label in maps]
    mixed = [label for label in (NORMALISED, _BASELINES[LINEAR]) if label in maps]
    means = []
    for count in (2, 3):
        for parts in combinations((name, *mixed), count):
            own = tuple(part for part in parts if part != name)
            means.append(_Side(", ".join(parts), 1 - len(own) / count, own))
    return [*linear, _Side(name, 1.0, ()), *means]


@torch.no_grad()
def _totals(
    model: Transformer,
    task: ForecastingTask,
    batches: Any,
    sides: Sequence[_Side],
    maps: Mapping[str, Affine],
    settings: tuple[str, Callable[[], bool]],
) -> list[Totals] | None:
    """Results of each contestant, from one pass of the deep path; None if stopped. ``settings``: precision, stop."""
    precision, stop = settings
    found = [Totals() for _ in sides]
    assert isinstance(model.wide, LinearWindow)
    model.wide.set_share(1.0, 0.0)
    with evaluating(model):
        for batch in batches:
            if stop():
                return None
            here: Batch = batch.to(model.device)
            with autocast(precision, model.device):
                deep = model(here.input)[0]
            window = model.wide.window(here.input)
            linear = {label: (window @ each.table + each.bias).view(deep.shape) for label, each in maps.items()}
            for total, side in zip(found, sides, strict=True):
                outputs = side.deep * deep.to(window.dtype) if side.deep else torch.zeros_like(deep, dtype=window.dtype)
                for label in side.maps:
                    outputs = outputs + (1 - side.deep) / len(side.maps) * linear[label]
                total.add(task.observed(model, task.levelled(model, here, outputs), here))
    return found


def _mean(maps: Sequence[Affine]) -> Affine:
    return Affine(*(torch.stack(parts).mean(0) for parts in zip(*maps, strict=True)))


@torch.no_grad()
def _set(model: Transformer, found: Affine, deep: float, wide: float) -> None:
    assert isinstance(model.wide, LinearWindow)
    model.wide.table.copy_(found.table)
    model.wide.bias.copy_(found.bias)
    model.wide.set_share(deep, wide)
