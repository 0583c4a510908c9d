"""Distances between waveforms: mel distance at several resolutions, relative error, signal-to-distortion ratio."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from qkv.data.features.mel import mel_filters
from qkv.ops.at_least_single import at_least_single

WINDOWS = (32, 64, 128, 256, 512, 1024, 2048)
"""Samples of the windows of the mel distance."""
QUIET = 1e-4
"""Power of a sound, -40 dB, below which the relative error falls."""
_MOST_BINS = 80
_FLOOR = 1e-5
"""Smallest magnitude of a mel band."""


@lru_cache(maxsize=64)
def _tables(rate: int, window: int) -> tuple[Tensor, Tensor]:
    """Return (weights of a window, mel filters (window // 2 + 1, bins)) in float32."""
    bins = min(_MOST_BINS, 5 * window // WINDOWS[0])
    filters = mel_filters(rate, window, bins, "slaney", 0.0, rate / 2)
    return torch.hann_window(window), torch.from_numpy(filters).to(torch.float32)


def log_bands(samples: Tensor, rate: int, window: int) -> Tensor:
    """Return log10 of the magnitudes of mel bands (B, frames, bins) of samples (B, T), a quarter window apart."""
    weights, filters = (table.to(samples.device) for table in _tables(rate, window))
    spectrum = torch.stft(
        at_least_single(samples), window, window // 4, window=weights, pad_mode="constant", return_complex=True
    )
    power = spectrum.real.square() + spectrum.imag.square()
    return ((power + _FLOOR**2).sqrt().mT @ filters.to(power.dtype)).clamp(min=_FLOOR).log10()


def mel_distances(samples: Tensor, targets: Tensor, rate: int) -> Tensor:
    """Return the mel distance of each row, (B): mean |log10 mel(samples) - log10 mel(targets)| over all windows.

    samples, targets (B, T). Windows of ``WINDOWS`` samples, 5 mel bands in the shortest to 80 (Kumar et al. 2023).
    """
    scales = [
        (log_bands(samples, rate, window) - log_bands(targets, rate, window)).abs().mean((1, 2)) for window in WINDOWS
    ]
    return torch.stack(scales).mean(0)


def relative_errors(samples: Tensor, targets: Tensor) -> Tensor:
    """Return Σ (y - x)² / (Σ x² + T · ``QUIET``) of each row of samples y and targets x (B, T), (B).

    The inverse of the signal-to-distortion ratio: quiet sounds count as much as loud ones, down to the power ``QUIET``.
    """
    return (samples - targets).square().mean(1) / (targets.square().mean(1) + QUIET)


def distortion_ratios(samples: Tensor, targets: Tensor) -> Tensor:
    """Return the scale-invariant signal-to-distortion ratio of each row in dB, (B) (SI-SDR, Le Roux et al. 2019).

    10 log10(|a x|² / |a x - y|²) with a = <y, x> / <x, x>, of samples y and targets x (B, T) without their means. NaN
    for targets without sound.
    """
    y, x = (each.to(torch.float64) - each.to(torch.float64).mean(1, keepdim=True) for each in (samples, targets))
    scaled = (y * x).sum(1, keepdim=True) / x.square().sum(1, keepdim=True) * x
    return 10 * (scaled.square().sum(1) / (scaled - y).square().sum(1)).log10()
