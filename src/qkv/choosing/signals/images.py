"""Choose a recipe for images and this machine: size, patches, model and training length."""

from __future__ import annotations

from typing import Any

from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import short_form, training_of
from qkv.costs.measuring.machine import usable_memory
from qkv.data.processors.processor import build_processor
from qkv.report.figures import counted
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.data import RandomCrops
from qkv.spec.heads import Head
from qkv.spec.masks import Full
from qkv.spec.model import Block, Model
from qkv.spec.models.wide import Gradients
from qkv.spec.parts import LayerNorm
from qkv.spec.recipe import Recipe
from qkv.spec.signals.images import Crop, Flip, Images, Patches, Pixels
from qkv.spec.tasks import Task as TaskSpec
from qkv.system.errors import UserError

_GRID = 8
"""Approximate number of rows, and of columns, in a transformer's grid of positions."""
_EPOCHS = 40
_FEW = 2_000
"""Number of images below which the model and its batches are smaller."""
_FEW_ROWS, _ROWS = 32, 64


@chooses(Images)
def choose_images(request: RecipeRequest) -> Recipe:
    """Choose a recipe for a task with one output per image.

    Three models compete in heats (``qkv.training.race.heats``): a transformer over patches after a small convolutional
    stem, a transformer over plain patches, and a convolutional network. In training, images are flipped and shifted at
    random.
    """
    count = len(request.values)
    processor, (height, width) = _processor(request)
    side = max(height, width)
    model = _model(count, side, request.task)
    rows = _FEW_ROWS if count < _FEW else _ROWS
    training = training_of(count, rows, _EPOCHS, request.machine.precision, warmup=200, validated=40)
    return Recipe(
        description=f"{counted(count, 'image')} of {height} × {width} pixels: chosen for this data and this machine.",
        data=request.data.changed(processor=processor, batching=RandomCrops()),
        model=model,
        wide=Gradients(),
        task=request.task,
        training=training,
        quick=short_form(training.steps),
        candidates=_candidates(side, model.width),
    )


def _processor(request: RecipeRequest) -> tuple[Images, tuple[int, int]]:
    """Return (processor fitted to the training images, (height, width)). The processor gets augmentation unless it
    already has some.
    """
    processor = fitted_pixels(request)
    assert isinstance(processor, Images)
    height, width = processor.height, processor.width
    assert height
    assert width
    if not processor.augment:
        processor = processor.changed(augment=(Crop(padding=max(1, max(height, width) // 10)), Flip()))
    return processor, (height, width)


def fitted_pixels(request: RecipeRequest) -> Pixels:
    """Fit the processor of pixels to the training values. Raises ``UserError`` if these do not fit into memory."""
    assert request.data.processor is not None
    processor = build_processor(request.data.processor).fitted(request.values)
    assert isinstance(processor, Pixels)
    size, memory = len(request.values) * (processor.num_pixels or 0), usable_memory()
    if memory is not None and size > memory / 2:
        raise UserError(
            f"data.source: the training data take {size / 1e9:.1f} GB at {processor.height} × {processor.width} "
            "pixels, more than half of the memory; set a smaller height and width of the processor in a recipe"
        )
    return processor


def _model(count: int, side: int, task: TaskSpec) -> Model:
    width = 64 if count < _FEW else 128
    return Model(
        width=width,
        num_layers=2 if count < _FEW else 4,
        frontend=Patches(patch=_patch(side, 2), stem=(32, 64), dropout=0.1),
        blocks=(_block(width),),
        head=Head.kinds()[task.head](),
    )


def _block(width: int) -> Block:
    attention = Attention(num_heads=max(1, width // 32), mask=Full())
    return Block(branches=(attention, FeedForward(hidden=2 * width)), norm=LayerNorm(), dropout=0.1)


def _patch(side: int, stages: int) -> int:
    """Return the patch size with which ``side`` pixels, halved ``stages`` times, give about ``_GRID`` rows."""
    return max(1, round(side / 2**stages / _GRID))


def _candidates(side: int, width: int) -> dict[str, dict[str, Any]]:
    """Return the models that compete in heats: name -> overrides of the recipe. They are its own model, a transformer
    over plain patches, and a convolutional network.
    """
    plain = {"model.frontend.stem": [], "model.frontend.patch": _patch(side, 0)}
    network = {
        "model.num_layers": None,
        "model.blocks": [],
        "model.width": 2 * width,
        "model.frontend.stem": [32, 64, 128],
        "model.frontend.patch": 1,
        "model.frontend.positions": "none",
    }
    return {"transformer": {}, "patches": plain, "convolution": network}
