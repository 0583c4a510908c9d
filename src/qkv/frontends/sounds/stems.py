"""Front ends of speech recognisers: Moonshine's for samples, and subsampling in 2-D for log-mel frames."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu

from qkv.frontends.sounds.convolutions import FrameFrontend, SampleFrontend, TimeNorm, silenced
from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Layouts
from qkv.layers.linear.linear import Linear
from qkv.layers.signal import Signal
from qkv.spec.model import Stack
from qkv.spec.register import implements
from qkv.spec.signals.stems import MelSubsampling, WaveStem

_EPS = 1e-5


@implements(WaveStem)
class WaveStemFrontend(SampleFrontend):
    """Front end for samples (B, T) -> vectors (B, N, D): norm(tanh(conv(x))), then GELU(conv(x)); see the spec."""

    part: WaveStem

    def __init__(self, part: WaveStem, stack: Stack, width: int, table: object = None):
        super().__init__(part, stack, width)
        channels = (1, *(multiple * part.vector_width(width) for multiple in part.multiples))
        self.convolutions = nn.ModuleList(
            nn.Conv1d(channels[i], channels[i + 1], kernel, stride, bias=i > 0)
            for i, (kernel, stride) in enumerate(zip(part.kernels, part.strides, strict=True))
        )
        self.time_norm = TimeNorm(1, channels[1], eps=_EPS)

    def layouts(self) -> Layouts:
        return {"convolutions": WHOLE, "time_norm": WHOLE}

    def forward(self, signal: Signal, context: Context) -> Tensor:
        x, lengths = self._values_read(signal)[:, None], self._lengths_read(signal)
        for i, convolution in enumerate(self.convolutions):
            x = convolution(x)
            lengths = None if lengths is None else self.part.after(lengths, i)
            x = gelu(x) if i else self.time_norm(torch.tanh(x), lengths)
        return self.placed(x.mT, context)


@implements(MelSubsampling)
class MelSubsamplingFrontend(FrameFrontend):
    """Front end for log-mel frames (B, T, bins) -> vectors (B, N, D) by convolutions in 2-D; see the spec.

        frames (B, 1, T, F) ─ conv ─ ReLU ─ [depthwise conv ─ map ─ ReLU] … ─ (B, N, C F') ─ map ─ (B, N, D)

    The frames beyond the length of a row are 0 before each convolution.
    """

    part: MelSubsampling

    def __init__(self, part: MelSubsampling, stack: Stack, width: int, table: object = None):
        super().__init__(part, stack, width)
        count, out = part.channels, part.vector_width(width)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(count if i else 1, count, kernel, stride, padding=part.border(kernel), groups=count if i else 1)
            for i, (kernel, stride) in enumerate(zip(part.kernels, part.strides, strict=True))
        )
        self.mixes = nn.ModuleList(nn.Conv2d(count, count, 1) for _ in part.kernels[1:])
        self.map = Linear(count * part.bands, out)
        self.factor = math.sqrt(out) if part.scale else 1.0

    def layouts(self) -> Layouts:
        return {"convolutions": WHOLE, "mixes": WHOLE}

    def initialise(self, std: float) -> None:
        """Initialise convolutions and maps of channels as He et al. 2015."""
        super().initialise(std)
        for mix in self.mixes:
            assert isinstance(mix, nn.Conv2d)
            nn.init.kaiming_normal_(mix.weight)
            assert mix.bias is not None
            nn.init.zeros_(mix.bias)

    def forward(self, signal: Signal, context: Context) -> Tensor:
        x, lengths = self._values_read(signal)[:, None], self._lengths_read(signal)
        for i, convolution in enumerate(self.convolutions):
            x = convolution(silenced(x, lengths))
            lengths = None if lengths is None else self.part.after(lengths, i)
            x = relu(self.mixes[i - 1](x) if i else x)
        return self.placed(self.map(x.transpose(1, 2).flatten(2)) * self.factor, context)
