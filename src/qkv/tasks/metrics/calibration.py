"""Calibration of label probabilities: temperature scaling and the expected calibration error (Guo et al. 2017).

Probabilities are softmax(z / T) of the logits z. The temperature T is fitted on the validation split after training; it
changes no answer, only the confidence in it: above 1 it lowers probabilities, below 1 it raises them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

BINS = 15
"""Number of bins of equal width in confidence, as in Guo et al. 2017."""
FEWEST = 10
"""Minimum number of rows to fit a temperature on."""
_RANGE = 5.0
"""Largest absolute value of log T."""
_HALVINGS = 40


class Scored(NamedTuple):
    """Logits (N, C) of N rows for C classes, and their true classes (N), as float64 and int64."""

    logits: np.ndarray
    truth: np.ndarray


def fit_temperature(scored: Scored) -> float:
    """Find the temperature T that minimises -Σ log softmax(z / T)[y] + (log T)² / 2 over the rows, by bisection.

    The second term, a standard normal prior of log T, matters only with few rows: if all of them are answered
    correctly, the first term alone has no minimum. Return 1 for fewer than ``FEWEST`` rows.
    """
    if len(scored.truth) < FEWEST:
        return 1.0
    logits = scored.logits - scored.logits.max(1, keepdims=True)
    true = np.take_along_axis(logits, scored.truth[:, None], 1)[:, 0]
    low, high = -_RANGE, _RANGE
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        inverse = math.exp(-middle)
        slope = middle - inverse * float(((probabilities(logits, 1 / inverse) * logits).sum(1) - true).sum())
        low, high = (low, middle) if slope > 0 else (middle, high)
    return math.exp((low + high) / 2)


def probabilities(logits: np.ndarray, temperature: float) -> np.ndarray:
    """Compute softmax(z / T) of each row of logits z (N, C)."""
    scaled = logits / temperature
    powers = np.exp(scaled - scaled.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def bins_of(scored: Scored, temperature: float) -> list[dict[str, float]]:
    """Bin rows by confidence; return per non-empty bin its bounds, rows, mean confidence and accuracy, in per cent.

    The confidence of a row is the probability of its most probable class.
    """
    chances = probabilities(scored.logits, temperature)
    confidence, right = chances.max(1), scored.logits.argmax(1) == scored.truth
    place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    return [
        {
            "low": 100 * i / BINS,
            "high": 100 * (i + 1) / BINS,
            "rows": int(inside.sum()),
            "confidence": 100 * float(confidence[inside].mean()),
            "accuracy": 100 * float(right[inside].mean()),
        }
        for i in range(BINS)
        if (inside := place == i).any()
    ]


def calibration_error(bins: list[dict[str, float]]) -> float:
    """Compute the expected calibration error, Σ_b n_b / n · |accuracy_b - confidence_b|, in per cent."""
    rows = sum(group["rows"] for group in bins)
    return sum(group["rows"] * abs(group["accuracy"] - group["confidence"]) for group in bins) / max(1, rows)


def calibration(scored: Scored, temperature: float) -> tuple[dict[str, float], dict[str, Any]]:
    """Return (metrics, report section) of the calibration at ``temperature``, and if it is not 1, also at 1."""
    after = bins_of(scored, temperature)
    figures = {"calibration_error": calibration_error(after)}
    section: dict[str, Any] = {"kind": "reliability", "title": "Reliability of the probabilities", "bins": after}
    if temperature == 1.0:
        return figures, section
    before = bins_of(scored, 1.0)
    figures["calibration_error_before"] = calibration_error(before)
    note = (
        f"Probabilities are scaled with the temperature {temperature:.3g}, fitted on the validation split; "
        f"the expected calibration error was {calibration_error(before):.1f} % and is {calibration_error(after):.1f} %."
    )
    return figures, {**section, "before": before, "note": note}
