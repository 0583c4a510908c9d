"""Guess the period of the season of a series."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qkv.data.cells.steps import Step, usual_period

_LEAST = 0.2
"""Minimum autocorrelation that counts as a season."""
_MOST = 4096


def guess_period(series: Sequence[np.ndarray], step: Step) -> int | None:
    """Guess the number of steps of a season from the training values (T, C) of each series; None if there is no season.

    The period that the step size suggests is used if its autocorrelation is above 0.2, else the lag of the highest peak
    above 0.2. The autocorrelation is computed from differences of neighbouring values and averaged over channels and
    series.
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
    mean = total / count
    usual = usual_period(step)
    if usual is not None and usual < most and mean[usual] > _LEAST:
        return usual
    peaks = [lag for lag in range(2, most - 1) if mean[lag - 1] < mean[lag] >= mean[lag + 1]]
    best = max(peaks, key=lambda lag: mean[lag], default=0)
    return best if best and mean[best] > _LEAST else None


def autocorrelation(values: np.ndarray, most: int) -> np.ndarray:
    """Compute the autocorrelation of a column at the lags 0 to ``most`` - 1, by the Fourier transform."""
    centred = values - values.mean()
    size = 1 << (2 * len(centred) - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    products = np.fft.irfft(spectrum * spectrum.conj(), size)[:most]
    return products / products[0]
