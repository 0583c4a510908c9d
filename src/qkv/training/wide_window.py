"""Wide path of forecasts: DLinear, fitted before the deep path is trained, and the choice between both and naive
forecasts afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from qkv.data.corpus import VALIDATION
from qkv.models.transformer import Transformer
from qkv.runs.evaluation import measure
from qkv.tasks.series_baselines import (
    LINEAR,
    REPEAT,
    SEASONAL,
    DLinear,
    baseline_errors,
    fit_linear,
    naive,
)
from qkv.tasks.series_dataset import SeriesDataset
from qkv.tasks.task import Task
from qkv.training.contestants import Contestant, ranked


def fit_window(model: Transformer, dataset: SeriesDataset) -> list[str]:
    """Train the wide path of a model of forecasts, on the loss of its head; return notices."""
    head: Any = model.head
    _take(model, fit_linear(dataset, head.form, head.each, True))
    return ["the linear path (DLinear) is trained"]


@torch.no_grad()
def _take(model: Transformer, linear: DLinear) -> None:
    assert model.wide is not None
    table, bias = linear.affine()
    model.wide.table.copy_(table)
    model.wide.bias.copy_(bias)


def join_window(
    model: Transformer, task: Task, dataset: SeriesDataset, precision: str, stop: Callable[[], bool], name: str
) -> list[Contestant] | None:
    """Choose between the deep path, DLinear, their mean, and naive forecasts by the validation part; return all, the
    best first. None if ``stop`` returned True.

    The naive ones are the last value and, with a season, the value one season before, with intervals fitted to the
    training part. Of those whose error is not worse than that of any baseline, the one of least loss is chosen.
    """
    wide, head = model.wide, cast("Any", model.head)
    assert wide is not None
    form, each = head.form, head.each
    own = (wide.table.clone(), wide.bias.clone())
    tables: dict[str, tuple[Tensor, Tensor]] = {LINEAR: own}
    task_spec: Any = dataset.recipe.task
    period = dataset.processor.period
    for kind, steps in ((REPEAT, 1), (SEASONAL, period)):
        if steps is not None and steps <= task_spec.context:
            tables[kind] = fit_linear(dataset, form, each, True, naive(dataset, steps, each, form)).affine()
    found = []
    shares = [("DLinear", LINEAR, 0.0, 1.0), (name, LINEAR, 1.0, 0.0), (f"{name}, DLinear", LINEAR, 0.5, 0.5)]
    naives = (("repeat last", REPEAT), ("seasonal naive", SEASONAL))
    shares += [(label, kind, 0.0, 1.0) for label, kind in naives if kind in tables]
    for label, kind, deep, linear in shares:
        _set(model, tables[kind], deep, linear)
        totals = measure(model, task, dataset.rows(VALIDATION), precision, stop)
        if totals is None:
            return None
        found.append((Contestant(label, deep, linear, task.figures(totals, dataset.scale())), kind))
    baseline = min(each.mean("squared") for each in baseline_errors(dataset, VALIDATION).values())
    order = ranked([contestant for contestant, _ in found], task.metric, baseline)
    kind = next(kind for contestant, kind in found if contestant is order[0])
    _set(model, tables[kind], order[0].deep, order[0].wide)
    return order


@torch.no_grad()
def _set(model: Transformer, table: tuple[Tensor, Tensor], deep: float, linear: float) -> None:
    assert model.wide is not None
    model.wide.table.copy_(table[0])
    model.wide.bias.copy_(table[1])
    model.wide.set_share(deep, linear)
