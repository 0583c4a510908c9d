"""Choose a recipe for the contours of shapes: model and training length."""

from __future__ import annotations

from typing import Any

from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import short_form, training_of
from qkv.report.figures import counted
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.data import RandomCrops
from qkv.spec.heads import Head
from qkv.spec.masks import Full
from qkv.spec.model import Block, Model
from qkv.spec.models.wide import Features
from qkv.spec.recipe import Recipe
from qkv.spec.signals.contours import ContourPoints, Contours
from qkv.spec.tasks import Task as TaskSpec

_EPOCHS = 40
_FEW = 2_000
"""Number of shapes below which the model is smaller."""
_ROWS = 32


@chooses(Contours)
def choose_contours(request: RecipeRequest) -> Recipe:
    """Choose a recipe for a task with one output per shape.

    A transformer over the points of the contours and convolutions along them compete in heats
    (``qkv.training.race.heats``); the winner is combined with a linear model of the silhouettes.
    """
    processor, count = request.data.processor, len(request.values)
    assert isinstance(processor, Contours)
    training = training_of(count, _ROWS, _EPOCHS, request.machine.precision, validated=40)
    shapes = f"{counted(count, 'shape')} of {processor.points} points"
    return Recipe(
        description=f"{shapes}: chosen for this data and this machine.",
        data=request.data.changed(batching=RandomCrops()),
        model=_model(count, request.task),
        wide=Features(),
        task=request.task,
        training=training,
        quick=short_form(training.steps),
        candidates=_candidates(),
    )


def _model(count: int, task: TaskSpec) -> Model:
    width, layers = (64, 2) if count < _FEW else (128, 4)
    attention = Attention(num_heads=width // 16, mask=Full())
    return Model(
        width=width,
        num_layers=layers,
        frontend=ContourPoints(dropout=0.1),
        blocks=(Block(branches=(attention, FeedForward(hidden=2 * width)), dropout=0.1),),
        head=Head.kinds()[task.head].parse({"pooling": ["mean", "max"], "dropout": 0.1}),
    )


def _candidates() -> dict[str, dict[str, Any]]:
    """Return the models that compete in heats: name -> overrides of the recipe."""
    block = [{"branches": ["convolution(7)", "feed_forward"], "dropout": 0.1}]
    return {"transformer": {}, "convolution": {"model.blocks": block}}
