"""Short-time Fourier transform of waveforms and its inverse, as products with fixed matrices."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

OVERLAP = 4
"""Number of windows that cover a sample."""
FLOOR = 1e-3
"""Magnitude below which the phase of a frequency fades."""


class ShortTimeFourier(nn.Module):
    """Spectra of windows of W = 4 h samples under Hann weights w, h samples apart, window m around m h + h / 2.

        S_mk = Σ_t w_t x_{m h + t - 3 h / 2} e^(-2πi k t / W),  k = 0, …, W / 2

    The inverse adds up the windows w_t · (inverse transform of S_m), divided by the sum of w² at each sample, so that
    it gives back x. Silence surrounds a waveform.
    """

    def __init__(self, step: int):
        """``step``: h, an even number."""
        super().__init__()
        self.waves: Tensor
        self.inverse: Tensor
        self.squares: Tensor
        self.step, self.window = step, OVERLAP * step
        self.bins = self.window // 2 + 1
        times, bins = torch.arange(self.window, dtype=torch.float64), torch.arange(self.bins, dtype=torch.float64)
        weights = 0.5 - 0.5 * (2 * math.pi * times / self.window).cos()
        angles = 2 * math.pi * bins[:, None] * times / self.window
        waves = torch.cat((angles.cos(), -angles.sin())) * weights
        twice = torch.where((bins == 0) | (bins == self.bins - 1), 1.0, 2.0) / self.window
        for name, values in (("waves", waves), ("inverse", waves * twice.repeat(2)[:, None]), ("squares", weights**2)):
            self.register_buffer(name, values.to(torch.get_default_dtype()), persistent=False)

    @property
    def before(self) -> int:
        """Samples of a window before its own ``step`` samples."""
        return (self.window - self.step) // 2

    @property
    def after(self) -> int:
        """Samples of a window after its own ``step`` samples."""
        return self.window - self.step - self.before

    def forward(self, samples: Tensor) -> Tensor:
        """Return real and imaginary parts (B, M, 2, W / 2 + 1) of samples (B, M h)."""
        padded = F.pad(samples, (self.before, self.after))
        spectra = F.conv1d(padded[:, None], self.waves[:, None].to(samples.dtype), stride=self.step)
        return spectra.mT.unflatten(-1, (2, self.bins))

    def samples(self, spectra: Tensor) -> Tensor:
        """Return the waveform (B, M h) of spectra (B, M, 2, W / 2 + 1)."""
        rows = spectra.flatten(-2).mT
        inverse, squares = self.inverse.to(rows.dtype), self.squares.to(rows.dtype)
        waves = F.conv_transpose1d(rows, inverse[:, None], stride=self.step)
        weights = F.conv_transpose1d(rows.new_ones(1, 1, rows.shape[-1]), squares[None, None], stride=self.step)
        inside = slice(self.before, self.before + rows.shape[-1] * self.step)
        return (waves[..., inside] / weights[..., inside])[:, 0]


def features_of(spectra: Tensor) -> Tensor:
    """Return log magnitude, and real and imaginary part of the phase (…, 3, K), of spectra (…, 2, K)."""
    magnitude = spectra.square().sum(-2, keepdim=True).sqrt().clamp(min=FLOOR)
    return torch.cat((magnitude.log(), spectra / magnitude), -2)


def spectra_of(outputs: Tensor, loudest: float) -> Tensor:
    """Return the spectra (…, 2, K) of log magnitudes, at most log ``loudest``, and phases in ``outputs`` (…, 3, K)."""
    level, phase = outputs[..., :1, :], outputs[..., 1:, :]
    length = (phase.square().sum(-2, keepdim=True) + FLOOR**2).sqrt()
    return level.clamp(max=math.log(loudest)).exp() * phase / length
