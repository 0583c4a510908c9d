"""Wide path of several inputs that are read together: a linear model of all features, and one of each input alone.

The features of an input have a mean squared norm of 1, times a factor. Factors and penalty have the least loss on the
validation split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.data.corpora.corpus import TRAIN, VALIDATION
from qkv.models.transformer import Transformer
from qkv.models.wide import AllInputs
from qkv.tasks.baselines.feature_baselines import once
from qkv.tasks.baselines.input_features import dense_columns, dense_rows
from qkv.tasks.baselines.linear import NORMALISED, Fitted, Solver, fit_with, scales
from qkv.tasks.dataset import Example, ExampleDataset
from qkv.tasks.labels.joined import JoinedTask
from qkv.training.race.contestants import Contestant
from qkv.training.wide.fit import copy_into, joined_with_singles
from qkv.training.wide.ngram_weights import count_features, fit_idf, tf_idf

_FACTORS = (0.5, 2.0)
"""Changes of the share of an input that are tried."""
_POWER = 0.5
"""Power of the scales of n-grams, see ``scales``."""
_LOSS = 0.999
"""Part of the loss to which another share must reduce it."""


class _Block(NamedTuple):
    """Features of one input: x (training rows, F) and unseen (validation rows, F), whose weights in the table of the
    path are those of ``used`` times ``factors``.
    """

    x: Any
    unseen: Any
    used: np.ndarray
    factors: np.ndarray


class _Design(NamedTuple):
    """Features of all inputs by name, targets of the training rows and of the validation rows, and solver."""

    blocks: dict[str, _Block]
    targets: np.ndarray
    truth: np.ndarray
    solver: Solver

    def stacked(self, shares: dict[str, float], unseen: bool = False) -> Any:
        """Return the features of the inputs in ``shares``, each times its share."""
        from scipy.sparse import csr_matrix, hstack

        some = {name: block.unseen if unseen else block.x for name, block in self.blocks.items()}
        return hstack([csr_matrix(some[name]) * share for name, share in shares.items()]).tocsr()


class _Choice(NamedTuple):
    """Share of each input that is read, and the penalty."""

    shares: dict[str, float]
    penalty: float


def fit_inputs(model: Transformer, task: JoinedTask, dataset: ExampleDataset) -> list[str]:
    """Fit the wide path of ``task`` to the training split; return notices."""
    assert isinstance(task.wide, AllInputs)
    design = _design(task.wide, task, dataset)
    _place(task.wide, *_fitted(task, dataset, design, tuple(design.blocks)))
    features = sum(block.x.shape[1] for block in design.blocks.values())
    return [
        f"the wide path is fitted: {features:,} features of {', '.join(design.blocks)}, {len(design.targets):,} rows"
    ]


def refit_inputs(task: JoinedTask, dataset: ExampleDataset) -> list[str]:
    """Fit the wide path again, to the training and the validation rows, with the same inputs; return notices."""
    assert isinstance(task.wide, AllInputs)
    path, first = task.wide, _design(task.wide, task, dataset)
    read = tuple(name for name, block in first.blocks.items() if bool(path.table[block.used].any()))
    choice = _chosen(dataset, first, read)
    design = _design(path, task, dataset, VALIDATION)
    _place(path, *_table(path, design, choice))
    return [f"the wide path is fitted again, to the training and the validation rows: {', '.join(read)}"]


def join_inputs(
    model: Transformer, task: JoinedTask, dataset: ExampleDataset, precision: str, stop: Callable[[], bool], name: str
) -> list[Contestant] | None:
    """Compare the model, the linear model of all inputs, both, and those of each input alone; see ``join_linear``."""
    return joined_with_singles(model, task, dataset, precision, stop, name, _of_each)


def _of_each(path: AllInputs, task: JoinedTask, dataset: ExampleDataset) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the table and bias of a linear model of each input alone; none if there is one input only."""
    design = _design(path, task, dataset)
    if len(design.blocks) == 1:
        return {}
    return {f"{name} alone": _fitted(task, dataset, design, (name,)) for name in design.blocks}


def _fitted(task: JoinedTask, dataset: ExampleDataset, design: _Design, read: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Return the table and bias of a model of the inputs ``read``, fitted once."""
    assert isinstance(task.wide, AllInputs)
    path = task.wide
    return once(dataset, ("inputs", read), lambda: _table(path, design, _chosen(dataset, design, read)))


def _chosen(dataset: ExampleDataset, design: _Design, read: tuple[str, ...]) -> _Choice:
    return once(dataset, ("shares", read), lambda: _choice(design, read))


def _choice(design: _Design, read: Sequence[str]) -> _Choice:
    """Choose penalty and shares by the loss on the validation rows; no choice makes more errors than the first."""
    best = _Choice(dict.fromkeys(read, 1.0), NORMALISED[0])
    least, bound = _judged(design, best)
    for penalty in NORMALISED[1:]:
        best, least = _better(design, best, least, best._replace(penalty=penalty), bound)
    for name in read if len(read) > 1 else ():
        for factor in _FACTORS:
            shares = {**best.shares, name: factor * best.shares[name]}
            best, least = _better(design, best, least, best._replace(shares=shares), bound)
    return best


def _better(design: _Design, best: _Choice, least: float, other: _Choice, bound: float) -> tuple[_Choice, float]:
    loss, errors = _judged(design, other)
    return (other, loss) if loss < _LOSS * least and errors <= bound else (best, least)


def _judged(design: _Design, choice: _Choice) -> tuple[float, float]:
    fitted = fit_with(design.solver, design.stacked(choice.shares), design.targets, choice.penalty)
    return design.solver.judged(fitted(design.stacked(choice.shares, unseen=True)), design.truth)


def _table(path: AllInputs, design: _Design, choice: _Choice) -> tuple[Tensor, Tensor]:
    """Fit with the shares and the penalty of ``choice``; return the table and the bias of the path."""
    fitted: Fitted = fit_with(design.solver, design.stacked(choice.shares), design.targets, choice.penalty)
    table, begin = np.zeros(path.table.shape), 0
    for name, share in choice.shares.items():
        block = design.blocks[name]
        weights = fitted.weights[begin : begin + len(block.used)]
        table[block.used] = weights * (share * block.factors)[:, None]
        begin += len(block.used)
    return torch.from_numpy(table).to(path.table), torch.from_numpy(fitted.intercept).to(path.bias)


def _place(path: AllInputs, table: Tensor, bias: Tensor) -> None:
    copy_into((path.table, path.bias), (table, bias))


def _design(path: AllInputs, task: JoinedTask, dataset: ExampleDataset, also: str | None = None) -> _Design:
    """Prepare the fit to the training rows and those of ``also``; set the statistics of the path."""
    return once(dataset, ("design", also), partial(_new_design, path, task, dataset, also))


def _new_design(path: AllInputs, task: JoinedTask, dataset: ExampleDataset, also: str | None) -> _Design:
    examples = [example for split in (TRAIN, also) if split for example in dataset.examples[split]]
    unseen, rows = dataset.examples[VALIDATION], dense_rows(examples)
    copy_into((path.mean, path.deviation), (rows.mean, rows.deviation))
    targets = np.concatenate([task.targets(dataset, split) for split in (TRAIN, also) if split])[rows.indices]
    solver, held_out = task.solver(path.num_outputs), rows.of(unseen)
    blocks = {
        name: _of_dense(rows.x[:, columns], held_out[:, columns], columns)
        for name, columns in dense_columns(dataset.recipe).items()
    }
    if path.buckets:
        examples_read = [examples[i] for i in rows.indices]
        blocks[str(dataset.recipe.data.text_input)] = _of_text(path, examples_read, unseen, solver.groups(targets))
    return _Design(blocks, targets, task.targets(dataset, VALIDATION), solver)


def _of_dense(x: np.ndarray, unseen: np.ndarray, columns: np.ndarray) -> _Block:
    factor = 1 / max(1e-6, float(np.square(x).sum(1).mean())) ** 0.5
    return _Block(x * factor, unseen * factor, columns, np.full(len(columns), factor))


def _of_text(path: AllInputs, examples: Sequence[Example], unseen: Sequence[Example], groups: np.ndarray) -> _Block:
    """Weight the n-grams of the text; set the idf of the path."""
    counts, held_out = (
        count_features([each.fields.bag for each in some], len(path.idf)) for some in (examples, unseen)
    )
    used = np.flatnonzero(fit_idf(path, counts))
    x, other = (tf_idf(path, each)[:, used] for each in (counts, held_out))
    factors = scales(x, groups, _POWER)
    x, other = x.multiply(factors).tocsr(), other.multiply(factors).tocsr()
    factor = 1 / max(1e-6, float(x.multiply(x).sum() / x.shape[0])) ** 0.5
    return _Block(x * factor, other * factor, path.first + used, factors * factor)
