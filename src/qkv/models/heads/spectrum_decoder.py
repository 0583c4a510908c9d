"""Head of neural codecs: quantizer, and decoder to a waveform by inverse short-time Fourier transforms."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from qkv.layers.linear.linear import Linear
from qkv.layers.sound.spectra import ShortTimeFourier, spectra_of
from qkv.layers.sound.waves import LOUDNESS
from qkv.models.heads.sample_decoder import SampleDecoderHead
from qkv.ops.at_least_single import at_least_single
from qkv.spec.register import implements
from qkv.spec.signals.codecs import SpectrumDecoder
from qkv.system.errors import UserError

_QUIETER = math.e
"""Factor by which a new decoder is quieter than usual recordings: adding to silence is easier than taking away."""


@implements(SpectrumDecoder)
class SpectrumDecoderHead(SampleDecoderHead):
    """Quantizer and decoder by spectra: x (B, N, D) -> codes (B, N, K) -> waveform (B, N · hop)."""

    part: SpectrumDecoder

    def __init__(self, part: SpectrumDecoder, width: int, table: object):
        if part.hop is None:
            raise UserError("model.head.hop is not set: set it, or use the front end 'spectra'")
        super().__init__(part, width, part.hop)
        self.transform = ShortTimeFourier(part.hop // part.frames)
        self.lookahead = self.transform.after if part.decoder.causal else None
        self.output = Linear(width, 3 * part.frames * self.transform.bins)

    def initialise(self, std: float) -> None:
        """Initialise the map for outputs of unit variance, around the magnitudes of quiet noise; the quantizer."""
        self.quantizer.initialise()
        nn.init.normal_(self.output.weight, std=self.output.in_features**-0.5)
        usual = math.log(LOUDNESS * math.sqrt(3 / 8 * self.transform.window) / _QUIETER)
        with torch.no_grad():
            self.output.bias.zero_().unflatten(0, (self.part.frames, 3, -1))[:, 0] += usual

    def decoded(self, q: Tensor) -> Tensor:
        x = q.to(self.output.weight.dtype)
        x = x if self.stack is None else self.stack(x)
        outputs = at_least_single(self.output(x)).unflatten(-1, (self.part.frames, 3, -1)).flatten(1, 2)
        return self.transform.samples(spectra_of(outputs, self.transform.window / 2))
