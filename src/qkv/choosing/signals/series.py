"""Choose a recipe for rows that are series: patches, model and training length."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import short_form, training_of
from qkv.data.processors.processor import build_processor
from qkv.data.records.columns.series_values import array_of
from qkv.data.records.values import Unusable
from qkv.report.figures import counted
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.data import LengthBuckets, RandomCrops
from qkv.spec.heads import Head
from qkv.spec.masks import Full
from qkv.spec.model import Block, Model
from qkv.spec.models.wide import Features
from qkv.spec.parts import Rope, Sinusoidal
from qkv.spec.recipe import Recipe
from qkv.spec.signals.series import Series, SeriesPatches
from qkv.spec.tasks import Task as TaskSpec

_PATCHES = 32
"""Approximate number of patches of a series of typical length; each patch overlaps the next by half."""
_EPOCHS = 40
_FEW = 2_000
"""Number of series below which the model is smaller."""
_ROWS = 32
_SAMPLE = 2_000


@chooses(Series)
def choose_series(request: RecipeRequest) -> Recipe:
    """Choose a recipe for a task with one output per series.

    Three models compete in heats (``qkv.training.race.heats``): a transformer over patches, a transformer over patches
    of standardised series, and convolutions over the patches.
    """
    data, values = request.data, request.values
    assert data.processor is not None
    processor = build_processor(data.processor).fitted(values)
    assert isinstance(processor, Series)
    lengths = _lengths(values[:: max(1, len(values) // _SAMPLE)], processor)
    usual, longest = int(np.quantile(lengths, 0.9)), int(lengths.max())
    equal = bool((lengths == longest).all())
    training = training_of(len(values), _ROWS, _EPOCHS, request.machine.precision, validated=100)
    channels = counted(len(processor.channels), "channel")
    steps = f"{longest:,} steps" if equal else f"up to {longest:,} steps"
    return Recipe(
        description=f"{len(values):,} series of {steps} and {channels}: chosen for this data and this machine.",
        data=data.changed(
            columns={**data.columns, "series": request.records.columns["series"]},
            processor=processor,
            batching=RandomCrops() if equal else LengthBuckets(buckets=4),
        ),
        model=_model(len(values), usual, longest, request.task),
        wide=Features(),
        task=request.task,
        training=training,
        quick=short_form(training.steps),
        candidates=_candidates(),
    )


def _lengths(values: list[Any], processor: Series) -> np.ndarray:
    """Return the numbers of steps of the readable series, an integer array; [1] if none is readable."""
    lengths = list[int]()
    for value in values:
        try:
            lengths.append(len(array_of(value, processor.channels)))
        except Unusable:
            continue
    return np.array(lengths or [1])


def _model(count: int, usual: int, longest: int, task: TaskSpec) -> Model:
    width, layers = (64, 2) if count < _FEW else (128, 3)
    patch = max(1, round(usual / _PATCHES))
    frontend = SeriesPatches(
        patch=2 * patch,
        stride=patch,
        channels="mixed",
        normalise="none",
        positions=Sinusoidal(),
        dropout=0.1,
    )
    attention = Attention(num_heads=width // 16, mask=Full(), relative=Rope())
    head = Head.kinds()[task.head].parse({"pooling": ["mean", "max"], "dropout": 0.2})
    return Model(
        width=width,
        num_layers=layers,
        context_length=frontend.patches(longest),
        frontend=frontend,
        blocks=(Block(branches=(attention, FeedForward(hidden=2 * width)), dropout=0.2),),
        head=head,
    )


def _candidates() -> dict[str, dict[str, Any]]:
    """Return the models that compete in heats: name -> overrides of the recipe."""
    block = [{"branches": ["convolution(5)", "feed_forward"], "dropout": 0.2}]
    return {
        "transformer": {},
        "standardised": {"model.frontend.normalise": "window"},
        "convolution": {"model.blocks": block},
    }
