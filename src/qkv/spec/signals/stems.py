"""Specs of front ends of speech recognisers: Moonshine's for samples, and subsampling in 2-D for log-mel frames."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from qkv.spec.base import Seq
from qkv.spec.errors import Problem
from qkv.spec.processors import Processor
from qkv.spec.signals.sound import OfFrames, OfSound, Size, Waveform


class WaveStem(OfSound, kind="wave_stem"):
    """Samples (B, T) -> vectors by strided convolutions over time (Moonshine, Jeffries et al. 2024).

    x ← norm(tanh(conv(x))) with the first convolution, which has no bias, then x ← GELU(conv(x)). Convolution i has
    ``multiples[i]`` times as many channels as a vector has features. The norm is over all channels and time of a row.
    """

    processor: ClassVar[type[Processor] | None] = Waveform
    multiples: Seq[Size] = Field(default=(1, 2, 1), description="channels, as multiples of the width; the last is 1")
    kernels: Seq[Size] = (127, 7, 3)
    strides: Seq[Size] = (64, 3, 2)

    @property
    def reach(self) -> int | None:
        return None

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if len(self.multiples) != len(self.kernels):
            sentence = f"{len(self.multiples)} given for {len(self.kernels)} kernels; give one for each"
            problems.append(Problem(("multiples",), sentence))
        elif self.multiples and self.multiples[-1] != 1:
            sentence = f"the last is {self.multiples[-1]}, but the last convolution gives the vectors; give 1"
            problems.append(Problem(("multiples",), sentence))
        return problems


class MelSubsampling(OfFrames, kind="mel_subsampling"):
    """Log-mel frames (B, T, bins) -> vectors by 2-D convolutions (Fast Conformer, Rekesh et al. 2023).

    Convolution i has ``kernels[i]`` · ``kernels[i]`` taps and the stride ``strides[i]`` on both axes. ReLU follows the
    first one. The others are depthwise; a linear map of the channels and ReLU follow each. A final linear map takes the
    channels of all remaining bands to the vector, which is multiplied by √D if ``scale`` is true.
    """

    channels: Size = 256
    kernels: Seq[Size] = (3, 3, 3)
    strides: Seq[Size] = (2, 2, 2)
    scale: bool = Field(default=True, description="multiply vectors by the root of the width")

    def border(self, kernel: int) -> int:
        return (kernel - 1) // 2

    @property
    def bands(self) -> int:
        """Number of bands that are left. The number of ``bins`` must be known."""
        assert self.bins is not None
        return self._left(self.bins)

    def _left(self, bands: int) -> int:
        for index in range(len(self.kernels)):
            bands = self.after(bands, index)
        return bands

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if not problems and self.bins is not None and self.bins < self.least:
            sentence = f"{self.bins} given, but the convolutions leave no band of fewer than {self.least}; give more"
            problems.append(Problem(("bins",), sentence))
        return problems
