"""Wide path of forecasting models: DLinear, fitted before the deep path is trained.

After training, the run chooses between the deep path, the wide path, their mixtures, and the baselines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.data.corpora.corpus import TEST, VALIDATION
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.models.wide import LinearWindow, WidePath
from qkv.ops.linear.precision import autocast
from qkv.tasks.series.forecasting import ForecastingTask
from qkv.tasks.series.series_baselines import LINEAR, REPEAT, SEASONAL, Affine, fit_linear, predictors, with_intervals
from qkv.tasks.series.series_dataset import SeriesDataset
from qkv.tasks.task import Totals
from qkv.training.race.contestants import Contestant, ranked

NORMALISED = "normalised DLinear"
"""Name of the wide path: DLinear on standardised windows, trained on the loss of the head."""
_BASELINES = {LINEAR: "DLinear", REPEAT: "repeat last", SEASONAL: "seasonal naive"}
Shares = Mapping[str, float]
"""Factors of a contestant, a weighted sum of models: name of the model -> factor."""


def fit_window(model: Transformer, task: ForecastingTask, dataset: SeriesDataset) -> list[str]:
    """Train the wide path beside a forecasting model with the loss of the model's head; return notices."""
    head: Any = model.head
    affine = fit_linear(dataset, head.form, head.each, True).affine()
    _set(task.wide, Affine(torch.nn.functional.pad(affine.table, (0, 0, 0, 2)), affine.bias), 1.0, 0.0)
    return ["the linear path (DLinear on standardised windows) is trained"]


def join_window(
    model: Transformer,
    task: ForecastingTask,
    dataset: SeriesDataset,
    precision: str,
    stop: Callable[[], bool],
    name: str,
) -> list[Contestant] | None:
    """Choose between the deep path called ``name``, linear maps, and mixtures of them by the validation split.

    Returns all contestants, the best first, with their test metrics if there is a test split; None if ``stop`` returned
    True. The best contestant is copied into the wide path.

    Linear maps are the wide path and all baselines. The baselines have the point forecasts that the evaluation reports,
    with intervals fitted to the training split. Mixtures are convex combinations of the deep and the wide path, and of
    both with DLinear; their factors minimise the squared error of the point forecasts on the validation split.

    The chosen contestant has the lowest loss among those whose error is not above the lowest error of the baselines.
    With ``keeps: deep``, only the deep path and its mixture with the wide path are eligible.
    """
    wide, head, name = task.wide, model.head, name or "patches"
    assert isinstance(wide, LinearWindow)
    maps = {NORMALISED: Affine(wide.table.detach().clone(), wide.bias.detach().clone())}
    for kind, points in predictors(dataset).items():
        affine = with_intervals(dataset, points, head.form, head.each)  # type: ignore[arg-type]
        maps[_BASELINES[kind]] = Affine(*(part.to(model.device) for part in affine))
    race = _Race(model, task, dataset, precision, stop, maps, name)
    sides: dict[str, Shares] = {label: {label: 1.0} for label in (*maps, name)}
    mixed = [label for label in (name, NORMALISED, _BASELINES[LINEAR]) if label in sides]
    products = race.products(mixed)
    for count in range(2, len(mixed) + 1):
        factors = convex(products[:count, :count])
        shares = {label: share for label, share in zip(mixed, factors, strict=False) if share}
        if shares:
            sides.setdefault(", ".join(shares), shares)
    figures = race.figures(VALIDATION, sides)
    tested = race.figures(TEST, sides) if TEST in dataset.splits else {}
    if stop():
        return None
    contestants, any_of = [], dataset.recipe.wide.keeps == "any"  # type: ignore[union-attr]
    for label, mixture in sides.items():
        deep, eligible = mixture.get(name, 0.0), any_of or (name in mixture and mixture.keys() <= {name, NORMALISED})
        wide_share, seen = sum(mixture.values()) - deep, tested.get(label, {})
        contestants.append(Contestant(label, deep, wide_share, figures[label], seen, eligible))
    baselines = [figures[_BASELINES[kind]][task.metric] for kind in predictors(dataset)]
    order = ranked(contestants, task.metric, min(baselines))
    race.keep(sides[order[0].name])
    return order


class _Race(NamedTuple):
    """Contestants of one forecasting model: its deep path, called ``name``, and the linear ``maps``, by name."""

    model: Transformer
    task: ForecastingTask
    dataset: SeriesDataset
    precision: str
    stop: Callable[[], bool]
    maps: Mapping[str, Affine]
    name: str

    def figures(self, split: str, sides: Mapping[str, Shares]) -> dict[str, dict[str, float]]:
        """Compute contestant -> metric -> value on a split; ``sides``: contestant -> its factors."""
        totals = {label: Totals() for label in sides}
        for batch, outputs in self._outputs(split):
            for label, shares in sides.items():
                mixed = sum(share * outputs[part] for part, share in shares.items())
                restored = self.task.levelled(self.model, batch, mixed)  # type: ignore[arg-type]
                totals[label].add(self.task.observed(self.model, restored, batch))
        scale = self.dataset.scale(split)
        return {label: self.task.figures(each, scale) for label, each in totals.items() if each.count}

    def products(self, labels: list[str]) -> np.ndarray:
        """Return the matrix whose entry (i, j) is the mean of error i times error j over all point forecasts on the
        validation split; error i: error of contestant i.
        """
        total, count = np.zeros((len(labels), len(labels))), 0
        form: Any = self.model.head.form
        for batch, outputs in self._outputs(VALIDATION):
            seen = ~batch.targets.isnan()
            points = (form.point(self.task.levelled(self.model, batch, outputs[label])) for label in labels)
            errors = torch.stack([(each - batch.targets)[seen].double() for each in points])
            total, count = total + (errors @ errors.T).numpy(force=True), count + errors.shape[1]
        return total / max(1, count)

    @torch.no_grad()
    def _outputs(self, split: str) -> Iterator[tuple[Batch, dict[str, Tensor]]]:
        """Yield each batch of a split with the raw outputs of the deep path and of each linear map; end early if
        stopped.
        """
        model, wide = self.model, self.task.wide
        assert isinstance(wide, LinearWindow)
        for batch in self.dataset.rows(split):
            if self.stop():
                return
            here = batch.to(model.device)
            with evaluating(model), autocast(self.precision, model.device):
                deep = model(here.input)[0]
            window = wide.window(here.input)
            linear = {label: (window @ each.table + each.bias).view(deep.shape) for label, each in self.maps.items()}
            yield here, {**linear, self.name: deep.to(window.dtype)}

    def keep(self, shares: Shares) -> None:
        """Copy a contestant with the factors ``shares`` into the wide path: its linear map, and the factors of both
        paths.
        """
        deep = shares.get(self.name, 0.0)
        wide = sum(shares.values()) - deep
        parts = {label: share / wide for label, share in shares.items() if label != self.name} or {NORMALISED: 1.0}
        table, bias = (sum(share * self.maps[label][i] for label, share in parts.items()) for i in range(2))
        _set(self.task.wide, Affine(table, bias), deep, wide)  # type: ignore[arg-type]


def convex(products: np.ndarray) -> list[float]:
    """Return the factors w ≥ 0 with sum 1 that minimise w^T P w, for a small positive semi-definite matrix P (n, n).
    Factors of rows with non-finite values are 0.
    """
    count = len(products)
    best, factors = np.inf, [0.0] * count
    for size in range(1, count + 1):
        for some in combinations(range(count), size):
            square = products[np.ix_(some, some)]
            if not np.isfinite(square).all():
                continue
            raw = np.linalg.lstsq(square, np.ones(size), rcond=None)[0] if size > 1 else np.ones(1)
            if raw.sum() <= 0 or (raw < 0).any():
                continue
            share = raw / raw.sum()
            error = float(share @ square @ share)
            if error < best - 1e-12:
                best, factors = error, [0.0] * count
                for i, value in zip(some, share.tolist(), strict=True):
                    factors[i] = value
    return factors


@torch.no_grad()
def _set(path: WidePath | None, affine: Affine, deep: float, wide: float) -> None:
    assert isinstance(path, LinearWindow)
    path.table.copy_(affine.table)
    path.bias.copy_(affine.bias)
    path.set_share(deep, wide)
