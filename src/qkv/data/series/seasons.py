"""Period of the season of a series."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qkv.data.cells.steps import Step, usual_period

_LEAST = 0.2
"""Smallest autocorrelation that counts as a season."""
_MOST = 4096


def guess_period(series: Sequence[np.ndarray], step: Step) -> int | None:
    """Steps of a season of the training values (T, C) of each series: the period that the spacing suggests if the
    autocorrelation at it is above 0.2, else the lag of its highest peak; None without one.

    The autocorrelation is that of the differences of neighbouring values, averaged over channels and series.
    """
    longest = max((len(values) for values in series), default=0)
    most = min(_MOST, longest // 2)
    if most < 3:
        return None
    total, count = np.zeros(most), 0
    for values in series:
        for column in np.diff(values, axis=0).T:
            if len(column) >= most and column.std() > 0:
                total += autocorrelation(column, most)
                count += 1
    if not count:
        return None
    found = total / count
    usual = usual_period(step)
    if usual is not None and usual < most and found[usual] > _LEAST:
        return usual
    peaks = [lag for lag in range(2, most - 1) if found[lag - 1] < found[lag] >= found[lag + 1]]
    best = max(peaks, key=lambda lag: found[lag], default=0)
    return best if best and found[best] > _LEAST else None


def autocorrelation(values: np.ndarray, most: int) -> np.ndarray:
    """Autocorrelation of a column at the lags 0 to ``most`` - 1, by the Fourier transform."""
    centred = values - values.mean()
    size = 1 << (2 * len(centred) - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    found = np.fft.irfft(spectrum * spectrum.conj(), size)[:most]
    return found / found[0]
