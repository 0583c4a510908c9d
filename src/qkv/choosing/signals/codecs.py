"""Choose a recipe for a neural codec of sounds and this machine: strides, quantizer, model and training length."""

from __future__ import annotations

from math import prod

from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import short_form, training_of
from qkv.data.processors.processor import build_processor
from qkv.report.figures import counted
from qkv.spec.data import RandomCrops
from qkv.spec.model import Model
from qkv.spec.models.quantizers import ScalarQuantizer
from qkv.spec.parts import NoNorm
from qkv.spec.recipe import Recipe
from qkv.spec.signals.codecs import SeaNet, WaveDecoder, WaveEncoder
from qkv.spec.signals.sound import Waveform
from qkv.spec.tasks import Autoencoding

_VECTORS = 50
"""Approximate number of vectors a second."""
_CODEBOOKS = 8
_EPOCHS, _MOST, _ROWS = 200, 100_000, 8
_FIRST = (4, 4, 5)
"""Strides before the last one, which depends on the sampling rate."""


@chooses(Autoencoding)
def choose_codec(request: RecipeRequest) -> Recipe:
    """Choose a recipe for a neural codec: a causal SEANet with finite scalar quantisation, of about 50 vectors a
    second and eight codebooks of 10 bits, whose first ones alone also decode.
    """
    reader = request.data.processor or Waveform(normalise=False)
    request = RecipeRequest(request.task, request.data.changed(processor=reader), request.changes)
    processor = build_processor(reader).fitted(request.values)
    assert isinstance(processor, Waveform)
    network, count = _network(processor.rate or _VECTORS), len(request.values)
    training = training_of(count, _ROWS, _EPOCHS, most=_MOST, validated=20, validations=10)
    speed = f"{(processor.rate or 0) / network.hop:.3g} vectors a second"
    return Recipe(
        description=f"{counted(count, 'sound')} at {processor.rate:,} Hz, {speed}: chosen for this data and this "
        "machine.",
        data=request.data.changed(processor=processor, batching=RandomCrops()),
        model=Model(
            width=64,
            frontend=WaveEncoder(network=network),
            blocks=(),
            norm=NoNorm(),
            head=WaveDecoder(quantizer=ScalarQuantizer(codebooks=_CODEBOOKS)),
        ),
        task=request.task,
        training=training,
        quick=short_form(training.steps),
    )


def _network(rate: int) -> SeaNet:
    """Build the network for sounds of ``rate`` Hz."""
    last = max(1, round(rate / _VECTORS / prod(_FIRST)))
    return SeaNet(channels=16, strides=(*_FIRST, last))
