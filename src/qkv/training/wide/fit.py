"""Linear wide path: fitted to the training split before the deep path is trained, and combined with it afterwards.

Both paths are trained separately. For the combined outputs a · deep + b · wide, the factors a and b minimise the loss
on the validation split (late fusion). If that split is small, equal factors are used unless fitted factors have a lower
cross-validated loss. The contestants are the wide path, the deep path and both combined. The run keeps the contestant
with the lowest validation loss among those whose validation metric is not worse than that of the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from qkv.costs.measuring.machine import usable_memory
from qkv.data.batching.batch import Batch
from qkv.data.corpora.corpus import TRAIN, VALIDATION
from qkv.data.features.ngrams import Bag
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.models.wide import DEEP, WIDE, Features, LinearPath, Ngrams
from qkv.ops.at_least_single import at_least_single
from qkv.ops.linear.precision import autocast
from qkv.report.evaluation import ERRORS, words
from qkv.tasks.baselines.feature_baselines import once
from qkv.tasks.baselines.linear import Fitted, Selection, by_scales
from qkv.tasks.dataset import Dataset, ExampleDataset
from qkv.tasks.labels.joined import JoinedTask
from qkv.tasks.task import Totals
from qkv.training.race.contestants import Contestant, deep_name, ranked
from qkv.training.wide.ngram_weights import count_features, fit_idf, tf_idf

_MANY = 300_000
"""Above this number of weights, n-grams that occur in only one row are omitted: they take time and improve nothing."""
_STEPS = 200
_SHARE = 0.25
"""Maximum share of the usable memory for the validation split and its outputs."""
_SMALL, _PARTS = 500, 5
"""(rows, folds): with fewer validation rows than this, the loss of a contestant is cross-validated with this number of
folds.
"""


class Design(NamedTuple):
    """Data and functions for fitting a wide path.

    x, targets: features and targets of the rows that it is fitted to; unseen, truth: features and targets of the
    validation split; select: function that selects the penalty and fits; place: function that copies the fitted weights
    into the path; said: number of features and rows in words.
    """

    x: Any
    targets: np.ndarray
    unseen: Any
    truth: np.ndarray
    select: Selection
    place: Callable[[Fitted], None]
    said: str


def fit_linear(model: Transformer, task: JoinedTask, dataset: Dataset) -> list[str]:
    """Fit the wide path of ``task`` to the training split; return notices.

    Penalty and scales are selected on the validation split, or by cross-validation. If there are many n-grams, those
    that occur in only one row are omitted.
    """
    assert isinstance(task.wide, LinearPath)
    design = _design(task, dataset)
    design.place(_fitted(task.wide, task, dataset, lambda: design))
    return [f"the wide path is fitted: {design.said}"]


def refit_linear(task: JoinedTask, dataset: Dataset) -> list[str]:
    """Fit the wide path again, to the training and the validation rows; return notices.

    The penalty and the power of the scales are those of the first fit, which was without the validation rows.
    """
    assert isinstance(task.wide, LinearPath)
    again = _fitted(task.wide, task, dataset, lambda: _design(task, dataset)).again
    assert again is not None, "selections keep how to fit again"
    design = _design(task, dataset, VALIDATION)
    design.place(again(design.x, design.targets))
    return [f"the wide path is fitted again, to the training and the validation rows: {design.said}"]


def _fitted(wide: LinearPath, task: JoinedTask, dataset: Dataset, design: Callable[[], Design]) -> Fitted:
    """Fit the wide path to the training rows, or return the cached fit of this data set."""
    outputs = wide.num_outputs

    def fit() -> Fitted:
        x, targets, unseen, truth, select, *_ = design()
        return select(task.solver(outputs), x, targets, unseen, truth)

    return once(dataset, "wide path", fit)


def _design(task: JoinedTask, dataset: Dataset, also: str | None = None) -> Design:
    """Prepare the fit of the wide path to the training rows, together with the rows of the split ``also`` if given."""
    part = dataset.recipe.wide
    if part is not None and part.of_values:
        assert isinstance(task.wide, Features)
        return _of_features(task.wide, task, dataset, also)
    assert isinstance(task.wide, Ngrams)
    assert isinstance(dataset, ExampleDataset)
    return _of_ngrams(task.wide, task, dataset, also)


def _targets(task: JoinedTask, dataset: Dataset, also: str | None) -> np.ndarray:
    return np.concatenate([task.targets(dataset, split) for split in (TRAIN, also) if split])


def _of_ngrams(wide: Ngrams, task: JoinedTask, dataset: ExampleDataset, also: str | None) -> Design:
    """Prepare the fit of a wide path on n-grams, and set their idf weights in ``wide``."""
    bags = [_bags(dataset, split) for split in (TRAIN, also) if split]
    counts = count_features(chain(*bags), len(wide.table))
    rows, occurring = counts.shape[0], fit_idf(wide, counts)
    many = np.count_nonzero(occurring) * wide.num_outputs > _MANY
    used = np.flatnonzero(occurring > int(many))
    held_out = count_features(_bags(dataset, VALIDATION), len(wide.table))
    x, unseen = (tf_idf(wide, each)[:, used] for each in (counts, held_out))

    def place(fitted: Fitted) -> None:
        weights = np.zeros((len(wide.table), wide.num_outputs))
        weights[used] = fitted.weights
        copy_into((wide.table, wide.bias), (weights, fitted.intercept))

    description = f"{len(used):,} n-grams of {rows:,} rows"
    return Design(
        x, _targets(task, dataset, also), unseen, task.targets(dataset, VALIDATION), by_scales, place, description
    )


def _bags(dataset: ExampleDataset, split: str) -> list[Bag]:
    return [example.fields.bag for example in dataset.examples[split]]


def _of_features(wide: Features, task: JoinedTask, dataset: Dataset, also: str | None) -> Design:
    """Prepare the fit of a wide path on a processor's simple features."""
    table = task.simple_features(dataset, VALIDATION, also)
    assert table is not None

    def place(fitted: Fitted) -> None:
        weights = table.placed(fitted, len(wide.table))
        copy_into((wide.table, wide.bias, wide.mean, wide.deviation), (weights, fitted[1], table.mean, table.deviation))

    description = f"{table.x.shape[1]:,} features ({words(table.name)}) of {len(table.kept):,} rows"
    targets, truth = _targets(task, dataset, also)[table.kept], task.targets(dataset, VALIDATION)
    return Design(table.x, targets, table.unseen, truth, table.select, place, description)


@torch.no_grad()
def copy_into(places: Sequence[Tensor], values: Sequence[Any]) -> None:
    """Copy values into tensors."""
    for place, value in zip(places, values, strict=True):
        place.copy_(torch.as_tensor(value))


def _of_singles(wide: LinearPath, task: JoinedTask, dataset: Dataset) -> dict[str, tuple[Tensor, Tensor]]:
    """For each feature in ``task.singles``, fit a wide path that reads only this feature to the training split.

    Return name of the feature -> (table, bias).
    """
    tables = dict[str, tuple[Tensor, Tensor]]()
    table = task.simple_features(dataset, VALIDATION) if task.singles else None
    if table is None:
        return tables
    truth, targets = task.targets(dataset, VALIDATION), task.targets(dataset, TRAIN)[table.kept]
    for name, column in task.singles.items():
        column_range = slice(column, column + 1)
        solver = task.solver(wide.num_outputs)
        fitted = table.select(solver, table.x[:, column_range], targets, table.unseen[:, column_range], truth)
        weights = torch.zeros_like(wide.table)
        weights[column_range] = torch.from_numpy(fitted.weights).to(weights)
        tables[name] = weights, torch.from_numpy(fitted.intercept).to(wide.bias)
    return tables


def join_linear(
    model: Transformer, task: JoinedTask, dataset: Dataset, precision: str, stop: Callable[[], bool], name: str
) -> list[Contestant] | None:
    """Fit the factors of the paths to the validation split, and set those of the best contestant in the wide path;
    return all contestants, the best first. None if ``stop`` returned True.

    The best contestant has the lowest loss among those whose ``task.metric`` is not worse than the best baseline; if
    all are worse, it is the contestant with the best metric. Between equal losses, the cheaper contestant wins: wide,
    then deep, then combined. ``name``: name of the deep path.
    """
    assert isinstance(task.wide, LinearPath)
    return joined_with_singles(model, task, dataset, precision, stop, name, _of_singles)


Singles = Callable[[Any, JoinedTask, Any], dict[str, tuple[Tensor, Tensor]]]
"""Function of (wide path, task, data set) that fits paths of a part of the features: name -> (table, bias)."""


def joined_with_singles(
    model: Transformer,
    task: JoinedTask,
    dataset: Dataset,
    precision: str,
    stop: Callable[[], bool],
    name: str,
    singles: Singles,
) -> list[Contestant] | None:
    """Compare the deep path, the wide path, both, and the ``singles``; see ``join_linear``."""
    path, name = task.wide, deep_name(model, name)
    assert isinstance(path, LinearPath)
    batches = _subset_in_memory(dataset.rows(VALIDATION), path.num_outputs)
    outputs = _outputs(model, task, batches, precision, stop)
    if outputs is None:
        return None
    simple = words(_noun(dataset) or task.simple(dataset.vocabulary))
    deep, wide, targets = outputs

    def contestant(name: str, reads: Sequence[int], linear: list[Tensor]) -> Contestant:
        (a, b), expected = _shares(model, torch.cat(deep), torch.cat(linear), torch.cat(targets), reads)
        totals = Totals()
        for one, other, batch in zip(deep, linear, batches, strict=True):
            totals.add(task.observed(model, a * one + b * other, batch))
        return Contestant(name, a, b, task.figures(totals, dataset.scale()), expected=expected)

    contestants = [
        contestant(name, reads, wide)
        for name, reads in ((simple, (WIDE,)), (name, (DEEP,)), (f"{name}, {simple}", (DEEP, WIDE)))
    ]
    tables = singles(path, task, dataset)
    contestants += [contestant(name, (WIDE,), _linear(path, table, batches)) for name, table in tables.items()]
    order = ranked(contestants, task.metric, _best_baseline(task, dataset))
    if order[0].name in tables:
        copy_into((path.table, path.bias), tables[order[0].name])
    path.set_share(order[0].deep, order[0].wide)
    return order


def _noun(dataset: Dataset) -> str:
    """Return the name of the features that the wide path reads; "" if the task names its simple features instead."""
    return "" if dataset.recipe.wide is None else dataset.recipe.wide.noun


def _subset_in_memory(batches: Iterable[Batch], outputs: int) -> list[Batch]:
    """Return as many ``batches`` as fit into a share of the memory, together with the ``outputs`` values per target
    that all contestants compute: all batches, or every second, or every fourth …
    """
    memory, step, size = usable_memory(), 1, 0
    most = math.inf if memory is None else _SHARE * memory
    subset = list[Batch]()
    for i, batch in enumerate(batches):
        if i % step == 0:
            subset.append(batch)
            size += _bytes(batch, outputs)
        while size > most and len(subset) > 1:
            subset, step = subset[::2], 2 * step
            size = sum(_bytes(each, outputs) for each in subset)
    return subset


def _bytes(batch: Batch, outputs: int) -> int:
    """Return the bytes of a batch, and of the outputs of both paths and of their sum in fp64."""
    tensors = (each for each in tree_iter(vars(batch.input)) if isinstance(each, Tensor))
    return sum(each.nbytes for each in tensors) + 3 * 8 * outputs * batch.num_targets


def _best_baseline(task: JoinedTask, dataset: Dataset) -> float | None:
    """Return the best value of the task's metric among its baselines on the validation split; None without
    baselines.
    """
    figures = task.baselines(dataset, VALIDATION)
    values = [value for name, value in figures.items() if name.startswith(f"{task.metric}_of_")]
    return (min if task.metric in ERRORS else max)(values, default=None)


@torch.no_grad()
def _linear(wide: LinearPath, table: tuple[Tensor, Tensor], batches: Sequence[Batch]) -> list[Tensor]:
    """Compute the outputs of the wide path with ``table``, another (table, bias), in fp64 on the CPU."""
    table_before = wide.table.clone(), wide.bias.clone()
    copy_into((wide.table, wide.bias), table)
    results = [at_least_single(wide(batch.to(wide.table.device).input)).double().cpu() for batch in batches]
    copy_into((wide.table, wide.bias), table_before)
    return results


@torch.no_grad()
def _outputs(
    model: Transformer, task: JoinedTask, batches: Sequence[Batch], precision: str, stop: Callable[[], bool]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]] | None:
    """Compute (deep outputs, wide outputs, targets), each a list with one tensor per batch on the CPU, the outputs in
    fp64; None if stopped.
    """
    assert task.wide is not None
    lists: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    with evaluating(model), autocast(precision, model.device):
        for batch in batches:
            if stop():
                return None
            here = batch.to(model.device)
            for path in (DEEP, WIDE):
                task.wide.set_share(float(path == DEEP), float(path == WIDE))
                outputs, targets = task.outputs_at_targets(model, here)
                lists[path].append(at_least_single(outputs).double().cpu())
            lists[2].append(targets.cpu())
    return lists


def _shares(
    model: Transformer, deep: Tensor, wide: Tensor, targets: Tensor, reads: Sequence[int]
) -> tuple[tuple[float, float], float | None]:
    """Return (factors of both paths, cross-validated loss per row); the loss is None unless there are few rows.

    Factors fitted to few rows scale up the outputs too much if these rows are predicted correctly. With few rows,
    cross-validation therefore decides between fitted and equal factors.
    """
    fitted, count = _factors(model, deep, wide, targets, reads), len(targets)
    if not _PARTS <= count < _SMALL:
        return fitted, None
    part, total = torch.arange(count) % _PARTS, 0.0
    for i in range(_PARTS):
        fold, rest = part == i, part != i
        a, b = _factors(model, deep[rest], wide[rest], targets[rest], reads)
        total += float(model.head.loss(a * deep[fold] + b * wide[fold], targets[fold]))
    a, b = (float(path in reads) / len(reads) for path in (DEEP, WIDE))
    plain = float(model.head.loss(a * deep + b * wide, targets))
    return ((a, b), plain / count) if plain <= total else (fitted, total / count)


def _factors(
    model: Transformer, deep: Tensor, wide: Tensor, targets: Tensor, reads: Sequence[int]
) -> tuple[float, float]:
    """Return the factors (a, b) that minimise the loss of a · deep + b · wide; the factor of a path not in ``reads`` is
    0.

    The loss includes the penalty (max(0, ln a)² + max(0, ln b)²) / 2, one half of a normal prior: without it, the
    factors have no finite optimum if all rows are correct. Factors below 1, such as that of a poor path, are not
    penalised.
    """
    size = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    on = torch.tensor([float(path in reads) for path in (DEEP, WIDE)], dtype=torch.float64)
    optimizer = torch.optim.LBFGS([size], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        a, b = size.exp() * on
        objective = (model.head.loss(a * deep + b * wide, targets) + (size * on).relu().square().sum() / 2) / len(
            targets
        )
        objective.backward()
        return objective

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[arg-type]
    a, b = (size.detach().exp() * on).tolist()
    return (a, b) if np.isfinite((a, b)).all() else (float(on[DEEP]), float(on[WIDE]))
