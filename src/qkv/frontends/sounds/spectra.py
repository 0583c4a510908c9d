"""Front end of neural codecs: waveforms to vectors by short-time Fourier transforms."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.frontends.sounds.samples import WaveFrontend
from qkv.layers.context import Context
from qkv.layers.layout import MATRIX, WHOLE, Layouts
from qkv.layers.signal import Signal
from qkv.layers.sound.spectra import ShortTimeFourier, features_of
from qkv.ops.at_least_single import at_least_single
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.codecs import Spectra


@implements(Spectra)
class SpectraFrontend(WaveFrontend):
    """Front end for waveforms: samples (B, T) -> vectors (B, ⌈T / hop⌉, D); silence beyond the length of a row."""

    part: Spectra

    def __init__(self, part: Spectra, stack: Stack, width: int, table: object = None):
        super().__init__(part, stack, part.hop)
        self.transform = ShortTimeFourier(part.hop // part.frames)
        self.weight = nn.Parameter(torch.empty(width, 3 * part.frames * self.transform.bins))
        self.bias = nn.Parameter(torch.zeros(width))

    def layouts(self) -> Layouts:
        return {"weight": MATRIX, "bias": WHOLE}

    def initialise(self, std: float) -> None:
        """Initialise the map so that its outputs have about unit variance."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    def forward(self, signal: Signal, context: Context) -> Tensor:
        spectra = self.transform.spectra(at_least_single(self.samples(signal)))
        x = features_of(spectra).unflatten(1, (-1, self.part.frames)).flatten(2)
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)
