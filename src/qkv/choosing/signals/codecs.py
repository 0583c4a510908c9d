"""Choose a recipe for a neural codec of sounds and this machine: strides, quantizer, model and training length."""

from __future__ import annotations

from qkv.choosing.signals.register import RecipeRequest, chooses
from qkv.choosing.signals.settings import short_form, training_of
from qkv.data.processors.processor import build_processor
from qkv.report.figures import counted
from qkv.spec.branches import CausalConvolution, FeedForward
from qkv.spec.data import RandomCrops
from qkv.spec.mixers.gated_convolution import ConformerConvolution
from qkv.spec.model import Block, Model
from qkv.spec.models.quantizers import ScalarQuantizer
from qkv.spec.parts import LayerNorm
from qkv.spec.recipe import Recipe
from qkv.spec.signals.codecs import DecoderBlocks, Spectra, SpectrumDecoder
from qkv.spec.signals.sound import Waveform
from qkv.spec.tasks import Autoencoding

_VECTORS = 50
"""Approximate number of vectors a second."""
_CODEBOOKS = 8
_EPOCHS, _MOST, _ROWS = 200, 100_000, 8
_WIDTH, _LAYERS, _FRAMES = 192, 4, 4


@chooses(Autoencoding)
def choose_codec(request: RecipeRequest) -> Recipe:
    """Choose a recipe for a neural codec: spectra of about 50 vectors a second, convolutions, finite scalar
    quantisation by eight codebooks of 10 bits, of which the first alone also decode, and causal convolutions.
    """
    reader = request.data.processor or Waveform(normalise=False)
    request = RecipeRequest(request.task, request.data.changed(processor=reader), request.changes)
    processor = build_processor(reader).fitted(request.values)
    assert isinstance(processor, Waveform)
    rate, count = processor.rate or _VECTORS, len(request.values)
    hop = 2 * _FRAMES * max(1, round(rate / _VECTORS / (2 * _FRAMES)))
    training = training_of(count, _ROWS, _EPOCHS, most=_MOST, validated=20, validations=10)
    ahead = Block(branches=(ConformerConvolution(kernel_size=7, norm=LayerNorm()), FeedForward(hidden=3 * _WIDTH)))
    causal = Block(branches=(CausalConvolution(kernel_size=3), FeedForward(hidden=3 * _WIDTH)))
    speed = f"{rate / hop:.3g} vectors a second"
    return Recipe(
        description=f"{counted(count, 'sound')} at {rate:,} Hz, {speed}: chosen for this data and this machine.",
        data=request.data.changed(processor=processor, batching=RandomCrops()),
        model=Model(
            width=_WIDTH,
            num_layers=_LAYERS,
            frontend=Spectra(hop=hop, frames=_FRAMES),
            blocks=(ahead,),
            head=SpectrumDecoder(
                quantizer=ScalarQuantizer(codebooks=_CODEBOOKS),
                decoder=DecoderBlocks(blocks=(causal,), num_layers=_LAYERS, norm=LayerNorm()),
                frames=_FRAMES,
            ),
        ),
        task=request.task,
        training=training,
        quick=short_form(training.steps),
    )
