"""Choose a recipe for clips and this machine: frames, tubelets, model and training length."""

from __future__ import annotations

from typing import Any

from qkv.choosing.signals.images import fitted_pixels
from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import short_form, training_of
from qkv.report.figures import counted
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.data import RandomCrops
from qkv.spec.heads import Head
from qkv.spec.masks import Full
from qkv.spec.model import Block, Model
from qkv.spec.models.wide import Features
from qkv.spec.parts import Sinusoidal3D
from qkv.spec.recipe import Recipe
from qkv.spec.signals.video import Tubelets, Video
from qkv.spec.tasks import Task as TaskSpec

_GRID = 4
"""Approximate number of rows, and of columns, in the grid of positions of a transformer over short tubelets; twice as
many over long tubelets.
"""
_EPOCHS = 30
_FEW = 2_000
"""Number of clips below which the model and its batches are smaller."""
_FEW_ROWS, _ROWS = 16, 32


@chooses(Video)
def choose_video(request: RecipeRequest) -> Recipe:
    """Choose a recipe for a task with one output per clip.

    Three transformers compete in heats (``qkv.training.race.heats``): over tubelets of two frames, over tubelets of all
    frames, and over single frames without their order. The winner is combined with a linear model of the mean frame.
    """
    processor, count = fitted_pixels(request), len(request.values)
    assert isinstance(processor, Video)
    assert processor.frames
    assert processor.height
    assert processor.width
    side = max(processor.height, processor.width)
    rows = _FEW_ROWS if count < _FEW else _ROWS
    training = training_of(count, rows, _EPOCHS, request.machine.precision, validated=40)
    size = f"{counted(processor.frames, 'frame')} of {processor.height} × {processor.width} pixels"
    return Recipe(
        description=f"{counted(count, 'clip')} of {size}: chosen for this data and this machine.",
        data=request.data.changed(processor=processor, batching=RandomCrops()),
        model=_model(count, processor.frames, side, request.task),
        wide=Features(),
        task=request.task,
        training=training,
        quick=short_form(training.steps),
        candidates=_candidates(processor.frames, side),
    )


def _model(count: int, frames: int, side: int, task: TaskSpec) -> Model:
    width, layers = (64, 2) if count < _FEW else (96, 3)
    attention = Attention(num_heads=width // 16, mask=Full())
    return Model(
        width=width,
        num_layers=layers,
        frontend=Tubelets(depth=min(2, frames), patch=_patch(side, _GRID), positions=Sinusoidal3D(), dropout=0.1),
        blocks=(Block(branches=(attention, FeedForward(hidden=2 * width)), dropout=0.1),),
        head=Head.kinds()[task.head].parse({"pooling": "mean"}),
    )


def _patch(side: int, rows: int) -> int:
    """Return the patch size that divides ``side`` pixels into about ``rows`` rows."""
    return max(1, round(side / rows))


def _candidates(frames: int, side: int) -> dict[str, dict[str, Any]]:
    """Return the models that compete in heats: name -> overrides of the recipe."""
    if frames == 1:
        return {}
    whole = {"model.frontend.depth": frames, "model.frontend.patch": _patch(side, 2 * _GRID)}
    unordered = {"model.frontend.depth": 1, "model.frontend.positions.ordered": False}
    return {"tubelets": {}, "long_tubelets": whole, "frames_without_order": unordered}
