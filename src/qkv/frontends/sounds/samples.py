"""Base class of front ends that map each piece of a waveform to a vector."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.frontends.frontend import Frontend
from qkv.layers.signal import Signal
from qkv.spec.model import Stack
from qkv.spec.signals.codecs import SampleEncoder
from qkv.system.errors import UserError


class WaveFrontend(Frontend):
    """Base class of front ends for waveforms: samples (B, T) -> vectors (B, ⌈T / hop⌉, D)."""

    def __init__(self, part: SampleEncoder, stack: Stack, hop: int):
        super().__init__(part, stack)
        self.hop = hop

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

    def samples(self, signal: Signal, completed: bool = True) -> Tensor:
        """Return the samples (B, T) with silence beyond the length of each row; ``completed``: and up to a whole
        number of vectors.
        """
        samples = signal.values.to(next(self.parameters()).dtype)
        if signal.lengths is not None:
            steps = torch.arange(samples.shape[-1], device=samples.device)
            samples = samples * (steps < signal.lengths[:, None])
        return F.pad(samples, (0, -samples.shape[-1] % self.hop)) if completed else samples
