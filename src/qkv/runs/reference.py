"""Start of training, with which tasks on conversations compare."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial

import torch

from qkv.layers.linear.lora import adapters, without_adapters
from qkv.models.build import build
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.runs.start import start_weights
from qkv.spec.recipe import Recipe
from qkv.tasks.chats.conversational import ConversationalTask
from qkv.tasks.task import Task


def open_reference(task: Task, model: Transformer, recipe: Recipe) -> None:
    """Give a task on conversations the start of training, with which its loss or its evaluation compares.

    Where ``model`` has adapters, this is the model without them, which takes no further memory. Otherwise the weights
    of ``recipe.start`` are read again when they are needed, and kept if each step needs them.
    """
    if not isinstance(task, ConversationalTask) or recipe.start.checkpoint is None:
        return
    if adapters(model):
        task.reference = lambda: _without_adapters(model)
        return
    read = partial(_read_start, recipe, model.device)
    read = cache(read) if task.needs_reference else read
    task.reference = lambda: nullcontext(read())


def _read_start(recipe: Recipe, device: torch.device) -> Transformer:
    start = build(recipe.model, recipe.training.seed)
    start_weights(start, recipe)
    return start.to(device).eval().requires_grad_(False)


@contextmanager
def _without_adapters(model: Transformer) -> Iterator[Transformer]:
    with evaluating(model), without_adapters(model):
        yield model
