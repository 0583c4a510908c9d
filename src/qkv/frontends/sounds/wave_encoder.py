"""Front end of neural codecs: waveforms to vectors by convolutions."""

from __future__ import annotations

from torch import Tensor

from qkv.frontends.sounds.samples import WaveFrontend
from qkv.layers.context import Context
from qkv.layers.signal import Signal
from qkv.layers.sound.waves import LOUDNESS, WaveLayers, encoder_layers
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.codecs import WaveEncoder


@implements(WaveEncoder)
class WaveEncoderFrontend(WaveFrontend):
    """Front end for waveforms: samples (B, T) -> vectors (B, ⌈T / hop⌉, D); silence beyond the length of a row."""

    part: WaveEncoder

    def __init__(self, part: WaveEncoder, stack: Stack, width: int, table: object = None):
        super().__init__(part, stack, part.hop)
        self.network = WaveLayers(encoder_layers(part.network, width))

    def initialise(self, std: float) -> None:
        """Initialise the convolutions to keep the variance, from 1 for a waveform of the usual loudness."""
        self.network.initialise(first=1 / LOUDNESS)

    def forward(self, signal: Signal, context: Context) -> Tensor:
        samples = self.samples(signal, completed=self.part.network.ends == "wave")
        return self.network(samples[:, None]).mT
