"""Spectra of sound: mel filter banks, log-mel frames, and mel-frequency cepstral coefficients."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from qkv.spec.signals.sound import SIMPLE_COEFFICIENTS, LogMel

_LINEAR = 200 / 3
"""Hz per mel below ``_BREAK`` on Slaney's scale."""
_BREAK = 1000.0
"""Frequency in Hz from which Slaney's scale is logarithmic."""
_GROWTH = math.log(6.4) / 27
"""Logarithm of the factor of frequencies from a mel to the next, above ``_BREAK``."""


def to_mel(hertz: np.ndarray, scale: str) -> np.ndarray:
    """Convert frequencies in Hz to mel.

    ``htk`` and ``kaldi``: 1127 ln(1 + f / 700) (O'Shaughnessy 1987); ``slaney``: f / (200 / 3) below 1 kHz, then
    logarithmic with 27 mels for a factor of 6.4 (Slaney 1998).
    """
    if scale != "slaney":
        return 1127.0 * np.log1p(hertz / 700.0)
    above = _BREAK / _LINEAR + np.log(np.maximum(hertz, _BREAK) / _BREAK) / _GROWTH
    return np.where(hertz < _BREAK, hertz / _LINEAR, above)


def to_hertz(mel: np.ndarray, scale: str) -> np.ndarray:
    """Convert mel to frequencies in Hz, the inverse of ``to_mel``."""
    if scale != "slaney":
        return 700.0 * np.expm1(mel / 1127.0)
    first = _BREAK / _LINEAR
    return np.where(mel < first, mel * _LINEAR, _BREAK * np.exp(_GROWTH * (np.maximum(mel, first) - first)))


def mel_filters(rate: int, size: int, bins: int, scale: str, lowest: float, highest: float) -> np.ndarray:
    """Return triangular filters (size // 2 + 1, bins) from the powers of an FFT of ``size`` samples to mel bands.

    Band b rises from edge b to edge b + 1 and falls to edge b + 2; edges are evenly spaced in mel. ``slaney``: each
    filter has the area 1 Hz · 2; ``kaldi``: triangles are straight in mel, not in Hz, and the highest frequency of the
    FFT is left out.
    """
    frequencies = np.linspace(0.0, rate / 2, size // 2 + 1)
    first, last = to_mel(np.array([lowest, highest]), scale).tolist()
    edges = np.linspace(first, last, bins + 2)
    if scale == "kaldi":
        places = to_mel(frequencies, scale)
    else:
        places, edges = frequencies, to_hertz(edges, scale)
    rise = (places[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    fall = (edges[2:] - places[:, None]) / (edges[2:] - edges[1:-1])
    filters = np.maximum(0.0, np.minimum(rise, fall))
    if scale == "kaldi":
        filters[-1] = 0.0
    if scale == "slaney":
        filters *= 2.0 / (edges[2:] - edges[:-2])
    return filters


@lru_cache(maxsize=16)
def _window(shape: str, size: int) -> Tensor:
    """Return the weights (size) of a window in float64."""
    window = torch.hann_window(size, periodic=shape == "hann", dtype=torch.float64)
    return window**0.85 if shape == "povey" else window


@lru_cache(maxsize=16)
def _filters(rate: int, size: int, bins: int, scale: str, lowest: float, highest: float) -> Tensor:
    return torch.from_numpy(mel_filters(rate, size, bins, scale, lowest, highest))


def log_mel(samples: Tensor, spec: LogMel, lengths: Tensor | None = None) -> Tensor:
    """Return the log-mel frames (B, T, bins) of samples (B, S) in float32, before ``normalise``; see ``LogMel``.

    ``lengths`` (B): samples of each row, so that frames do not depend on what follows; None: whole rows, where padding
    is part of the sound. Frames after those of a row are 0. Computed in float64, because the logarithm of a power near
    0 keeps the rounding of the transform.
    """
    sizes = torch.full((len(samples),), samples.shape[1]) if lengths is None else lengths
    bands = _bands(samples, spec, sizes)
    counts = torch.tensor([spec.frames(size) for size in sizes.tolist()])
    real = (torch.arange(bands.shape[1]) < counts[:, None])[..., None]
    if spec.form == "whisper":
        levels = _levels(bands)
        levels = raised_levels(levels, levels.masked_fill(~real, -torch.inf).amax((1, 2), keepdim=True))
    elif spec.scale == "kaldi":
        levels = bands.clamp(min=spec.floor).log()
    else:
        levels = (bands + spec.floor).log()
    return levels.masked_fill(~real, 0.0).to(torch.float32)


def band_levels(samples: Tensor, spec: LogMel) -> Tensor:
    """Return log10 of the powers (B, T, bins) in the bands of whole rows (B, S), at least -10, in float64."""
    return _levels(_bands(samples, spec, torch.full((len(samples),), samples.shape[1])))


def raised_levels(levels: Tensor, highest: Tensor | float) -> Tensor:
    """Return the frames of Whisper from ``levels``: raised to at least ``highest`` - 8, then (y + 4) / 4, in float32.

    ``highest``: maximum over the whole sound, of which ``levels`` may be a part.
    """
    return ((levels.clamp(min=highest - 8.0) + 4.0) / 4.0).to(torch.float32)


def _levels(bands: Tensor) -> Tensor:
    return bands.clamp(min=1e-10).log10()


def _bands(samples: Tensor, spec: LogMel, lengths: Tensor) -> Tensor:
    """Return the powers (B, T, bins) in the mel bands of samples (B, S), in float64."""
    assert spec.rate is not None
    power = _powers(samples.to(torch.float64) * spec.multiplier, spec, lengths)
    return power @ _filters(spec.rate, spec.size, spec.bins, spec.scale, spec.lowest, spec.highest or spec.rate / 2)


def _powers(samples: Tensor, spec: LogMel, lengths: Tensor) -> Tensor:
    """Return the powers (B, T, size // 2 + 1) of the windows of samples (B, S)."""
    if spec.preemphasis and not spec.offset:
        samples = torch.cat((samples[:, :1], samples[:, 1:] - spec.preemphasis * samples[:, :-1]), 1)
    margin = spec.frame // 2 if spec.centre else 0
    samples = _extended(samples, lengths, margin, spec.size // 2, spec.ends == "reflect")
    short = spec.frame - samples.shape[1]
    if short > 0:
        samples = torch.nn.functional.pad(samples, (0, short))
    frames = samples.unfold(1, spec.frame, spec.step)
    if spec.offset:
        frames = frames - frames.mean(-1, keepdim=True)
        if spec.preemphasis:
            before = torch.cat((frames[..., :1], frames[..., :-1]), -1)
            frames = frames - spec.preemphasis * before
    frames = frames[:, : spec.frames(int(lengths.max()))]
    spectrum = torch.fft.rfft(frames * _window(spec.shape, spec.frame), n=spec.size)
    return spectrum.real.square() + spectrum.imag.square()


def _extended(samples: Tensor, lengths: Tensor, margin: int, transform: int, reflect: bool) -> Tensor:
    """Extend each row of samples (B, S) by ``margin`` on both sides: by reflection, or by zeros.

    A row that is no longer than ``transform``, half of the size of the FFT, is not reflected.
    """
    place = torch.arange(-margin, samples.shape[1] + margin).expand(len(samples), -1)
    size = lengths[:, None]
    inside = (place >= 0) & (place < size)
    if reflect and margin:
        inside |= (size > transform) & (place < size + margin)
        place = place.abs()
        place = torch.where(place < size, place, 2 * (size - 1) - place)
    return samples.gather(1, place.clamp(0, samples.shape[1] - 1)) * inside


def cepstrum(levels: np.ndarray, count: int = SIMPLE_COEFFICIENTS) -> np.ndarray:
    """Return mel-frequency cepstral coefficients (T, count) of log-mel levels (T, bins): their orthonormal DCT-II.

    c[k] = s_k Σ_b y[b] cos(π k (b + ½) / B), s_0 = √(1 / B), s_k = √(2 / B) (Davis and Mermelstein 1980).
    """
    bins = levels.shape[1]
    table = np.cos(np.pi * np.arange(min(count, bins))[:, None] * (np.arange(bins) + 0.5) / bins) * math.sqrt(2 / bins)
    table[0] /= math.sqrt(2)
    coefficients = levels @ table.T
    return np.pad(coefficients, ((0, 0), (0, count - coefficients.shape[1])))
