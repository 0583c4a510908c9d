"""Head of neural codecs: quantizer, and convolutional decoder to a waveform."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qkv.layers.sound.waves import LOUDNESS, WaveLayers, decoder_layers
from qkv.models.heads.head import Head
from qkv.models.heads.quantizers import Coded, build_quantizer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.register import implements
from qkv.spec.signals.codecs import WaveDecoder
from qkv.system.errors import UserError


class ReconstructedWave(NamedTuple):
    """Decoded waveform (B, N · hop), and the codes that it was decoded from."""

    samples: Tensor
    codes: Coded


@implements(WaveDecoder)
class WaveDecoderHead(Head):
    """Quantizer and decoder: x (B, N, D) -> codes (B, N, K) -> waveform (B, N · hop)."""

    def __init__(self, part: WaveDecoder, width: int, table: object):
        super().__init__()
        if part.network is None:
            raise UserError("model.head.network is not set: set it, or use the front end 'wave_encoder'")
        self.part, self.hop = part, part.network.hop
        self.num_outputs = self.hop
        self.quantizer = build_quantizer(part.quantizer, width)
        self.network = WaveLayers(decoder_layers(part.network, width))

    def initialise(self, std: float) -> None:
        """Initialise the convolutions to keep the variance, down to a waveform of the usual loudness; the quantizer."""
        self.quantizer.initialise()
        self.network.initialise(last=LOUDNESS)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.reconstructed(x).samples

    def reconstructed(self, x: Tensor, codebooks: int | None = None) -> ReconstructedWave:
        """Quantise and decode vectors x (B, N, D), with the first ``codebooks`` codebooks; see ``Quantizer``."""
        codes = self.quantizer(x, codebooks)
        return ReconstructedWave(self.decoded(codes.q), codes)

    def ids(self, x: Tensor, codebooks: int | None = None) -> Tensor:
        """Return the codes (B, N, n) of vectors x (B, N, D)."""
        return self.quantizer(x, codebooks).ids

    def samples(self, ids: Tensor) -> Tensor:
        """Decode codes ``ids`` (B, N, n) of the first n codebooks to a waveform (B, N · hop)."""
        return self.decoded(self.quantizer.vectors(ids))

    def decoded(self, q: Tensor) -> Tensor:
        """Decode quantised vectors q (B, N, D) to a waveform (B, N · hop)."""
        y = at_least_single(self.network(q.to(next(self.network.parameters()).dtype).mT)[:, 0])
        return y.tanh() if self.part.bounded else y

    def random(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randn(rows, length * self.hop, generator=generator)

    def loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """Absolute error Σ |y - target|; ``smoothing`` is ignored, because targets are numbers."""
        return (at_least_single(outputs) - targets).abs().sum()
