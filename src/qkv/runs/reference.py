"""Start of training, with which losses on preferences compare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qkv.layers.linear.lora import adapters, without_adapters
from qkv.models.build import build
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.runs.start import start_weights
from qkv.spec.recipe import Recipe
from qkv.tasks.chats.preference import PreferenceTask
from qkv.tasks.task import Task


def open_reference(task: Task, model: Transformer, recipe: Recipe) -> None:
    """Give the task the start of training, if its loss compares with it.

    Where ``model`` has adapters, this is the model without them, which takes no further memory; else a frozen copy of
    the weights of ``recipe.start``, which is read again. Raises ``UserError`` if the start cannot be opened.
    """
    if not isinstance(task, PreferenceTask) or not task.needs_reference:
        return
    if adapters(model):
        task.reference = lambda: _without_adapters(model)
        return
    start = build(recipe.model, recipe.training.seed)
    start_weights(start, recipe)
    start.to(model.device).eval().requires_grad_(False)
    task.reference = lambda: _frozen(start)


@contextmanager
def _without_adapters(model: Transformer) -> Iterator[Transformer]:
    with evaluating(model), without_adapters(model):
        yield model


@contextmanager
def _frozen(model: Transformer) -> Iterator[Transformer]:
    yield model
