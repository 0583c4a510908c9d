"""Choose a recipe for sounds: log-mel frames, model and training length."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import short_form, training_of
from qkv.data.processors.processor import build_processor
from qkv.data.records.sounds.sound_files import sound_length
from qkv.data.records.values import readable
from qkv.report.figures import counted
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.data import LengthBuckets
from qkv.spec.heads import Head
from qkv.spec.masks import Full
from qkv.spec.model import Block, Model
from qkv.spec.models.wide import Features
from qkv.spec.parts import Rope
from qkv.spec.recipe import Recipe
from qkv.spec.signals.sound import FrameMasks, LogMel, Loudness, MelConvolutions, Shift, Speed, WhiteNoise
from qkv.spec.tasks import Task as TaskSpec

_EPOCHS = 40
_FEW = 2_000
"""Number of sounds below which the model is smaller."""
_ROWS = 32
_SAMPLE = 500
_POSITIONS = 100
"""Approximate number of positions of a sound of typical length; a position is two frames or more."""


@chooses(LogMel)
def choose_sounds(request: RecipeRequest) -> Recipe:
    """Choose a recipe for a task with one output per sound.

    Two models compete in heats (``qkv.training.race.heats``): a transformer over log-mel frames and convolutions over
    them. In training, sounds are shifted, their speed, loudness and noise vary, and bands and spans are masked.
    """
    data, values = request.data, request.values
    assert data.processor is not None
    processor = build_processor(data.processor.changed(normalise="clip", form="log")).fitted(values)
    assert isinstance(processor, LogMel)
    if not processor.changes:
        processor = processor.changed(changes=(Shift(), Speed(), Loudness(), WhiteNoise(), FrameMasks()))
    seconds = readable(lambda value: sound_length(value)[0], values[:: max(1, len(values) // _SAMPLE)], "sound")
    usual, longest = float(np.quantile(seconds, 0.9)), min(max(seconds), processor.longest)
    training = training_of(len(values), _ROWS, _EPOCHS, request.machine.precision, validated=100)
    column = request.records.columns.get("sound")
    return Recipe(
        description=f"{counted(len(values), 'sound')} of up to {longest:.3g} seconds at {processor.rate:,} Hz: chosen "
        "for this data and this machine.",
        data=data.changed(
            columns={**data.columns, **({"sound": column} if column else {})},
            processor=processor,
            batching=LengthBuckets(buckets=4),
        ),
        model=_model(len(values), round(usual * 1000 / processor.hop), request.task),
        wide=Features(),
        task=request.task,
        training=training,
        quick=short_form(training.steps),
        candidates=_candidates(),
    )


def _model(count: int, frames: int, task: TaskSpec) -> Model:
    width, layers = (128, 3) if count < _FEW else (192, 4)
    strides = (1, 2) if frames <= 2 * _POSITIONS else (2, 2)
    attention = Attention(num_heads=width // 32, mask=Full(), relative=Rope())
    head = Head.kinds()[task.head].parse({"pooling": ["mean", "max"], "dropout": 0.2})
    return Model(
        width=width,
        num_layers=layers,
        frontend=MelConvolutions(strides=strides, dropout=0.1),
        blocks=(Block(branches=(attention, FeedForward(hidden=2 * width)), dropout=0.1),),
        head=head,
    )


def _candidates() -> dict[str, dict[str, Any]]:
    """Return the models that compete in heats: name -> overrides of the recipe."""
    block = [{"branches": ["convolution(5)", "feed_forward"], "dropout": 0.1}]
    return {"transformer": {}, "convolution": {"model.blocks": block}}
