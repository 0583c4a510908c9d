"""Numbers and vectors of equations as text, and their differences."""

from __future__ import annotations

from torch import Tensor

SMALL = 8
"""Largest number of features of a vector that is always written in full."""


def vector_text(vector: Tensor, features: int) -> str:
    """Write the first ``features`` numbers of a vector (D), or all of a small one."""
    numbers: list[float] = vector.flatten().tolist()
    if len(numbers) <= max(features, SMALL):
        return f"[{', '.join(map(number_text, numbers))}]"
    return f"[{', '.join(map(number_text, numbers[:features]))}, … of {len(numbers)}]"


def number_text(value: float) -> str:
    """Write a number with three decimals, or three significant digits if it is large or tiny."""
    if value == 0 or 5e-4 <= abs(value) < 1e4:
        return f"{value:.3f}".replace("-", "−")
    return f"{value:.3g}".replace("-", "−")


def difference(result: Tensor, value: Tensor) -> float:
    """Return the largest difference of two tensors of the same shape, relative to the largest number if that is > 1."""
    size = max(1.0, float(value.abs().max()) if value.numel() else 0.0)
    return float((result - value).abs().max()) / size if value.numel() else 0.0
