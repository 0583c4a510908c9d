"""Short-time Fourier transform of waveforms and its inverse, as products with fixed matrices."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

OVERLAP = 4
"""Number of windows that cover a sample."""
FLOOR = 1e-3
"""Magnitude below which the phase of a frequency fades."""


class _Tables(NamedTuple):
    """Matrices of windows of W samples: waves (W + 2, W) of the transform, inverse (W + 2, W), squared weights (W)."""

    waves: np.ndarray
    inverse: np.ndarray
    squares: np.ndarray


@lru_cache(maxsize=32)
def _tables(window: int) -> _Tables:
    """Build the matrices. They are no buffers of a module: a model that is loaded has only what its file holds."""
    times, bins = np.arange(window), np.arange(window // 2 + 1)
    weights = 0.5 - 0.5 * np.cos(2 * np.pi * times / window)
    angles = 2 * np.pi * bins[:, None] * times / window
    waves = np.concatenate((np.cos(angles), -np.sin(angles))) * weights
    twice = np.where((bins == 0) | (bins == window // 2), 1.0, 2.0) / window
    return _Tables(waves, waves * np.tile(twice, 2)[:, None], weights**2)


def _like(table: np.ndarray, values: Tensor) -> Tensor:
    return torch.from_numpy(table).to(values.device, values.dtype)


class ShortTimeFourier:
    """Spectra of windows of W = 4 h samples under Hann weights w, h samples apart, window m around m h + h / 2.

        S_mk = Σ_t w_t x_{m h + t - 3 h / 2} e^(-2πi k t / W),  k = 0, …, W / 2

    The inverse adds up the windows w_t · (inverse transform of S_m), divided by the sum of w² at each sample, so that
    it gives back x. Silence surrounds a waveform.
    """

    def __init__(self, step: int):
        """``step``: h, an even number."""
        self.step, self.window = step, OVERLAP * step
        self.bins = self.window // 2 + 1

    @property
    def before(self) -> int:
        """Samples of a window before its own ``step`` samples."""
        return (self.window - self.step) // 2

    @property
    def after(self) -> int:
        """Samples of a window after its own ``step`` samples."""
        return self.window - self.step - self.before

    def spectra(self, samples: Tensor) -> Tensor:
        """Return real and imaginary parts (B, M, 2, W / 2 + 1) of samples (B, M h)."""
        waves = _like(_tables(self.window).waves, samples)
        spectra = F.conv1d(F.pad(samples, (self.before, self.after))[:, None], waves[:, None], stride=self.step)
        return spectra.mT.unflatten(-1, (2, self.bins))

    def samples(self, spectra: Tensor) -> Tensor:
        """Return the waveform (B, M h) of spectra (B, M, 2, W / 2 + 1)."""
        rows = spectra.flatten(-2).mT
        inverse, squares = (_like(each, rows) for each in _tables(self.window)[1:])
        waves = F.conv_transpose1d(rows, inverse[:, None], stride=self.step)
        ones = rows.new_ones(1, 1, rows.shape[-1])
        weights = F.conv_transpose1d(ones, squares[None, None], stride=self.step)
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
