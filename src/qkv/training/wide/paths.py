"""Wide paths by kind: how each is fitted before training, fitted again at the end, and joined with the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any, NamedTuple

import torch

from qkv.models.nearest import Nearest
from qkv.models.transformer import Transformer
from qkv.models.wide import WIDE, AllInputs, LinearWindow, PairMap, WidePath
from qkv.tasks.dataset import Dataset, ExampleDataset
from qkv.tasks.task import Task
from qkv.training.race.contestants import Contestant
from qkv.training.wide.fit import fit_linear, join_linear, refit_linear
from qkv.training.wide.inputs import fit_inputs, join_inputs, refit_inputs
from qkv.training.wide.nearest import join_nearest, keep_rows
from qkv.training.wide.pairs import fit_pairs, join_pairs, refit_pairs
from qkv.training.wide.window import fit_window, join_window

Stop = Callable[[], bool]


class WideFunctions(NamedTuple):
    """Functions for one kind of wide path; ``refit`` is None if the path is not fitted to the validation rows."""

    fit: Callable[[Transformer, Any, Any], list[str]]
    refit: Callable[[Any, Any], list[str]] | None
    join: Callable[[Transformer, Any, Any, str, Stop, str], list[Contestant] | None]


@singledispatch
def functions_of(path: WidePath) -> WideFunctions:
    """Return the functions for a wide path; by default, for a linear map of the features of a row."""
    return WideFunctions(fit_linear, refit_linear, join_linear)


@functions_of.register
def _window(path: LinearWindow) -> WideFunctions:
    return WideFunctions(fit_window, None, join_window)


@functions_of.register
def _pairs(path: PairMap) -> WideFunctions:
    return WideFunctions(fit_pairs, refit_pairs, join_pairs)


@functions_of.register
def _inputs(path: AllInputs) -> WideFunctions:
    return WideFunctions(fit_inputs, refit_inputs, join_inputs)


@functions_of.register
def _nearest(path: Nearest) -> WideFunctions:
    return WideFunctions(keep_rows, None, join_nearest)


def fit_wide(model: Transformer, task: Task, dataset: Dataset) -> list[str]:
    """Fit the wide path of ``task``, if it has one, to the training split; return notices. ``model``: the deep path.

    Raises ``UserError`` if scikit-learn is not installed.
    """
    return [] if task.wide is None else functions_of(task.wide).fit(model, task, dataset)


def refit_wide(device: torch.device, task: Task, dataset: Dataset) -> list[str]:
    """Fit the wide path again, to the training and the validation rows; return notices. ``device``: that of the model.

    If the path is not used, or the data set is not a table of examples, nothing is done and no notice returned.
    """
    wide = task.wide
    refit = None if wide is None or not wide.reads(WIDE) else functions_of(wide).refit
    if wide is None or refit is None or not isinstance(dataset, ExampleDataset):
        return []
    wide.to("cpu")
    notes = refit(task, dataset)
    wide.to(device)
    return notes


def join(
    model: Transformer, task: Task, dataset: Dataset, precision: str, stop: Stop, name: str = ""
) -> list[Contestant] | None:
    """Choose between the model and its wide path by the validation split; return all contestants, the best first.

    None if ``stop`` returned True. ``name``: name of the deep path; default: the kinds of its token mixers.
    """
    assert task.wide is not None
    return functions_of(task.wide).join(model, task, dataset, precision, stop, name)
