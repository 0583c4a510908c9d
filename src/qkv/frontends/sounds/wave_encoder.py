"""Front end of neural codecs: waveforms to vectors by convolutions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.frontends.frontend import Frontend
from qkv.layers.context import Context
from qkv.layers.signal import Signal
from qkv.layers.sound.waves import LOUDNESS, WaveLayers, encoder_layers
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.codecs import WaveEncoder
from qkv.system.errors import UserError


@implements(WaveEncoder)
class WaveEncoderFrontend(Frontend):
    """Front end for waveforms: samples (B, T) -> vectors (B, ⌈T / hop⌉, D); silence beyond the length of a row."""

    part: WaveEncoder

    def __init__(self, part: WaveEncoder, stack: Stack, width: int, table: object = None):
        super().__init__(part, stack)
        self.network = WaveLayers(encoder_layers(part.network, width))
        self.hop = part.network.hop

    def initialise(self, std: float) -> None:
        """Initialise the convolutions to keep the variance, from 1 for a waveform of the usual loudness."""
        self.network.initialise(first=1 / LOUDNESS)

    def check(self, signal: Signal) -> None:
        values = signal.values
        if values.dim() != 2 or not values.is_floating_point() or not values.shape[1]:
            shape, kind = tuple(values.shape), str(values.dtype).removeprefix("torch.")
            raise UserError(
                f"waveforms have the shape {shape} and the type {kind}, and the model reads samples (B, T) as floats"
            )

    def count(self, signal: Signal) -> int:
        return -(-signal.values.shape[1] // self.hop)

    def lengths(self, signal: Signal) -> Tensor | None:
        return None if signal.lengths is None else (signal.lengths + self.hop - 1) // self.hop

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        return Signal(torch.randn(rows, length * self.hop, generator=generator))

    def forward(self, signal: Signal, context: Context) -> Tensor:
        samples = signal.values.to(next(self.parameters()).dtype)[:, None]
        if signal.lengths is not None:
            steps = torch.arange(samples.shape[-1], device=samples.device)
            samples = samples * (steps < signal.lengths[:, None])[:, None]
        if self.part.network.ends == "wave":
            samples = F.pad(samples, (0, -samples.shape[-1] % self.hop))
        return self.network(samples).mT
