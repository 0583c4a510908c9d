"""Wide path of models that match two inputs: linear maps into one space, fitted before the deep path is trained.

After training, the run chooses between the deep path, the linear maps, and a weighted sum of both similarities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.data.corpora.corpus import TRAIN, VALIDATION
from qkv.models.evaluating import evaluating
from qkv.models.heads.matching import Matcher
from qkv.models.transformer import Transformer
from qkv.models.wide import DEEP, WIDE, Features, LinearPath, Ngrams, PairMap, WidePath
from qkv.ops.at_least_single import at_least_single
from qkv.ops.linear.precision import autocast
from qkv.tasks.dataset import Example, ExampleDataset
from qkv.tasks.metrics.text_metrics import metric_library
from qkv.tasks.multimodal.baseline import PENALTIES, matching_baselines, spread
from qkv.tasks.multimodal.matching import MatchingTask
from qkv.tasks.task import Observed, Totals
from qkv.training.race.contestants import Contestant, deep_name, ranked
from qkv.training.wide.ngram_weights import count_features, fit_idf, tf_idf

_STEPS, _BEGIN = 200, 2.3
"""Steps of the optimiser of the factors, and the logarithm of their first value."""
_NEAREST = "nearest neighbour"
_LARGEST = 4.6
"""Bound of the logarithm of a factor: similarities are scaled by at most 100."""


def fit_pairs(model: Transformer, task: MatchingTask, dataset: ExampleDataset) -> list[str]:
    """Fit both linear maps to the training rows; return notices.

    The vectors of the second input are its features on their principal axes. Those of the first are predicted by ridge
    regression from the principal axes of its features, with the penalty of least error in cross-validation.
    """
    return [f"the linear map between both inputs is fitted to {_fit(task.wide, dataset.examples[TRAIN]):,} rows"]


def refit_pairs(task: MatchingTask, dataset: ExampleDataset) -> list[str]:
    """Fit both linear maps again, to the training and the validation rows; return notices."""
    rows = _fit(task.wide, [*dataset.examples[TRAIN], *dataset.examples[VALIDATION]])
    return [f"the linear map between both inputs is fitted again to {rows:,} rows, those of the validation split too"]


def _fit(wide: WidePath | None, examples: Sequence[Example]) -> int:
    """Fit both linear maps to examples; return the number of those that are read."""
    assert isinstance(wide, PairMap)
    rows = [examples[i].fields.features for i in spread(len(examples))]
    (x, axes), (y, targets) = (
        _principal(path, [row[i] for row in rows]) for i, path in enumerate((wide.first, wide.second))
    )
    ridge = metric_library("sklearn.linear_model").RidgeCV(alphas=PENALTIES).fit(x @ axes, y @ targets)
    _place(wide.second, targets, np.zeros(targets.shape[1]))
    _place(wide.first, axes @ np.atleast_2d(ridge.coef_).T, np.atleast_1d(ridge.intercept_))
    if wide.lookup is not None:
        _place(wide.lookup, axes, np.zeros(axes.shape[1]))
        for name, scale in wide.first.named_buffers():
            wide.lookup.get_buffer(name).copy_(scale)
        wide.keep(torch.from_numpy(np.asarray(x @ axes)), torch.from_numpy(np.asarray(y @ targets)))
    return len(rows)


def _principal(path: LinearPath, features: Sequence[Any]) -> tuple[Any, np.ndarray]:
    """Return (features (rows, F) as the path reads them, their principal axes (F, A)), and set its scales."""
    x = scale_features(path, features)
    axes = max(1, min(path.num_outputs, min(x.shape) - 1))
    reduction = metric_library("sklearn.decomposition").TruncatedSVD(axes, random_state=0).fit(x)
    return x, reduction.components_.T


@singledispatch
def scale_features(path: LinearPath, features: Sequence[Any]) -> Any:
    """Set the scales of a path from the features of training rows; return the features as it reads them, (rows, F)."""
    raise TypeError(type(path))


@scale_features.register
def _scale_ngrams(path: Ngrams, features: Sequence[Any]) -> Any:
    counts = count_features(features, len(path.table))
    fit_idf(path, counts)
    return tf_idf(path, counts)


@scale_features.register
def _scale_dense(path: Features, features: Sequence[Any]) -> Any:
    dense = np.stack(features).astype(np.float64)
    path.mean.copy_(torch.from_numpy(dense.mean(0)))
    path.deviation.copy_(torch.from_numpy(dense.std(0) + 1e-6))
    return path.scaled(torch.from_numpy(dense)).numpy()


@torch.no_grad()
def _place(path: LinearPath, table: np.ndarray, bias: np.ndarray) -> None:
    """Copy a map with fewer outputs than the path into its first outputs; the others are 0."""
    for place, value in ((path.table, table), (path.bias, bias)):
        place.zero_()
        place[..., : value.shape[-1]] = torch.from_numpy(value)


class _Similarities(NamedTuple):
    """Cosine similarities (B, B) of all pairs of a batch by the deep and by the wide path; both vectors (B, 2, ·)."""

    deep: Tensor
    wide: Tensor
    vectors: tuple[Tensor, Tensor]
    contents: Tensor

    def by(self, vectors: Tensor) -> _Similarities:
        """Return a copy with other vectors of the wide path."""
        return self._replace(wide=vectors[:, 0] @ vectors[:, 1].T, vectors=(self.vectors[DEEP], vectors))


def join_pairs(
    model: Transformer, task: MatchingTask, dataset: ExampleDataset, precision: str, stop: Callable[[], bool], name: str
) -> list[Contestant] | None:
    """Choose between the deep path called ``name``, the linear map, both, and the nearest training rows, by the
    validation split; return all contestants, the best first. None if ``stop`` returned True.

    Each contestant has the scale and offset of lowest validation loss; those of the best one are set in the head.
    """
    wide, head, name = task.wide, model.head, deep_name(model, name)
    assert isinstance(wide, PairMap)
    assert isinstance(head, Matcher)
    wide.find_rows(False)
    linear = [*_similarities(model, task, dataset, precision, stop)]
    near = [] if wide.lookup is None else _of_rows(wide, task, model, dataset, linear)
    if stop():
        return None
    fits = dict[str, tuple[float, float, float]]()
    contestants = list[Contestant]()
    entries = [("linear map", (WIDE,)), (name, (DEEP,)), (f"{name}, linear map", (DEEP, WIDE))]
    for label, reads in [*entries, *([(_NEAREST, (WIDE,))] if near else [])]:
        batches = near if label == _NEAREST else linear
        a, b, offset = fits[label] = _factors(head, batches, reads)
        deep, totals = a / (a + b), Totals()
        for batch in batches:
            loss = head.loss_of_scores(a * batch.deep + b * batch.wide + offset, batch.contents)
            shares = torch.tensor([deep, 1 - deep]).sqrt()
            rows = torch.cat([share * each for share, each in zip(shares, batch.vectors, strict=True)], -1)
            totals.add(Observed(loss, len(rows), list(zip(rows.numpy(), batch.contents.numpy(), strict=True))))
        contestants.append(Contestant(label, deep, 1 - deep, task.figures(totals, dataset.scale(VALIDATION))))
    inputs = task.reader(dataset.recipe, dataset.vocabulary)
    baselines = matching_baselines(dataset, VALIDATION, inputs)
    order = ranked(contestants, task.metric, max(baselines.values(), default=None))
    wide.set_share(order[0].deep, order[0].wide)
    wide.find_rows(order[0].name == _NEAREST)
    a, b, offset = fits[order[0].name]
    head.set_scale(a + b, offset)
    return order


def _of_rows(
    wide: PairMap, task: MatchingTask, model: Transformer, dataset: ExampleDataset, linear: Sequence[_Similarities]
) -> list[_Similarities]:
    """Return the similarities with the vectors of the nearest training rows in place of the linear map."""
    wide.set_share(0.0, 1.0)
    wide.find_rows(True)
    with torch.no_grad(), evaluating(model):
        vectors = [
            at_least_single(task.row_outputs(model, batch.to(model.device))).cpu()
            for batch, _ in zip(dataset.rows(VALIDATION), linear, strict=False)
        ]
    wide.find_rows(False)
    return [each.by(rows) for each, rows in zip(linear, vectors, strict=True)]


def _similarities(
    model: Transformer, task: MatchingTask, dataset: ExampleDataset, precision: str, stop: Callable[[], bool]
) -> Iterator[_Similarities]:
    """Yield the similarities of each validation batch; end early if stopped."""
    assert isinstance(task.wide, PairMap)
    with torch.no_grad(), evaluating(model), autocast(precision, model.device):
        for batch in dataset.rows(VALIDATION):
            if stop():
                return
            here, vectors = batch.to(model.device), list[Tensor]()
            for path in (DEEP, WIDE):
                task.wide.set_share(float(path == DEEP), float(path == WIDE))
                vectors.append(at_least_single(task.row_outputs(model, here)).cpu())
            deep, wide = (each[:, 0] @ each[:, 1].T for each in vectors)
            yield _Similarities(deep, wide, (vectors[DEEP], vectors[WIDE]), batch.targets.cpu())


def _factors(head: Matcher, batches: Sequence[_Similarities], reads: Sequence[int]) -> tuple[float, float, float]:
    """Return (a, b, z) of lowest loss of the scores a · deep + b · wide + z.

    The factor of a path not in ``reads`` is 0, and so is z if the head has no offset.
    """
    free = torch.tensor([_BEGIN, _BEGIN, 0.0], dtype=torch.float64, requires_grad=True)
    on = torch.tensor([float(path in reads) for path in (DEEP, WIDE)], dtype=torch.float64)
    count = sum(len(batch.contents) for batch in batches)
    optimizer = torch.optim.LBFGS([free], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def factors() -> tuple[Tensor, Tensor, Tensor]:
        a, b = free[:2].clamp(max=_LARGEST).exp() * on
        return a, b, free[2] * float(head.offset is not None)

    def loss() -> Tensor:
        optimizer.zero_grad()
        a, b, z = factors()
        losses = [head.loss_of_scores(a * each.deep + b * each.wide + z, each.contents) for each in batches]
        mean = torch.stack(losses).sum() / count
        mean.backward()
        return mean

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[arg-type]
    a, b, z = (float(each.detach()) for each in factors())
    return (a, b, z) if np.isfinite((a, b, z)).all() else (*(10 * on).tolist(), 0.0)
