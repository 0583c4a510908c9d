"""Simple features of a series for a linear baseline: level, spread, trend, autocorrelation, spectrum and shape."""

from __future__ import annotations

import numpy as np

_LAGS = (1, 2, 3, 4, 6, 8, 12, 16)
_BANDS = 8
_SEGMENTS = 13
_LEAST = 1e-12


def statistics(values: np.ndarray) -> np.ndarray:
    """Compute features of values (T, C) without gaps: ``SIMPLE`` per channel, and the logarithm of the length."""
    features = [_of_channel(column) for column in np.asarray(values, np.float64).T]
    return np.concatenate((*features, [np.log(len(values))])).astype(np.float32)


def _of_channel(x: np.ndarray) -> np.ndarray:
    mean, deviation = x.mean(), x.std()
    z = (x - mean) / deviation if deviation > _LEAST * max(1.0, abs(mean)) else np.zeros_like(x)
    steps = np.diff(x) if len(x) > 1 else np.zeros(1)
    time = np.linspace(-1, 1, len(x)) if len(x) > 1 else np.zeros(1)
    slope = (time * (x - mean)).sum() / max(_LEAST, (time**2).sum())
    shape = ((z**3).mean(), np.log1p((z**4).mean()), (np.diff(np.sign(z)) != 0).mean() if len(x) > 1 else 0.0)
    level = (mean, deviation, *np.quantile(x, (0.0, 0.25, 0.5, 0.75, 1.0)), x[0], x[-1], slope)
    change = (np.abs(steps).mean(), steps.std(), np.abs(steps).max())
    return np.concatenate((level, change, shape, _autocorrelation(z), _spectrum(z), _segments(x)))


def _autocorrelation(z: np.ndarray) -> list[float]:
    """Compute the mean of z_t z_(t + lag) at each lag; 0 for lags that are too long."""
    return [float((z[:-lag] * z[lag:]).sum() / len(z)) if len(z) > lag else 0.0 for lag in _LAGS]


def _spectrum(z: np.ndarray) -> np.ndarray:
    """Compute log(1 + 100 × fraction of the power) for frequency bands that double in width; 0 without variation."""
    power = np.abs(np.fft.rfft(z))[1:] ** 2
    if power.sum() < _LEAST:
        return np.zeros(_BANDS)
    frequency = np.arange(1, len(power) + 1) / len(z)  # up to 1/2
    band = np.clip(_BANDS - 1 + np.ceil(np.log2(2 * frequency)), 0, _BANDS - 1).astype(int)
    return np.log1p(100 * np.bincount(band, power, _BANDS) / power.sum())


def _segments(x: np.ndarray) -> np.ndarray:
    """Compute the mean of each of ``_SEGMENTS`` segments of equal length, by linear interpolation of the running
    sum.
    """
    ends = np.linspace(0, len(x), _SEGMENTS + 1)
    sums = np.interp(ends, np.arange(len(x) + 1), np.concatenate(([0.0], np.cumsum(x))))
    return np.diff(sums) * _SEGMENTS / len(x)
