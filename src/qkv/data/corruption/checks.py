"""What every objective asks of its arguments."""

from __future__ import annotations

import numpy as np

from qkv.spec.errors import UserError


def check_share(name: str, value: float) -> None:
    """Raises ``UserError`` unless ``value`` is a share, a number from 0 to 1."""
    if not 0 <= value <= 1:
        raise UserError(f"{name} is {value}, but it is a share: give a number from 0 to 1")


def check_at_least(name: str, value: float, least: float) -> None:
    """Raises ``UserError`` unless ``value`` is a finite number that is no less than ``least``."""
    if not least <= value < float("inf"):
        raise UserError(f"{name} is {value}, but it must be at least {least}")


def check_one_row(ids: np.ndarray) -> None:
    """Raises ``UserError`` unless ``ids`` has one axis."""
    if ids.ndim != 1:
        raise UserError(f"ids have the shape {ids.shape}, but this takes the tokens of one text, an array of one axis")


def check_rows(ids: np.ndarray, **beside: np.ndarray | None) -> None:
    """Raises ``UserError`` unless ``ids`` is (B, N) and so is each array that is given beside it."""
    if ids.ndim != 2:
        raise UserError(f"ids have the shape {ids.shape}, but this takes a batch of rows, an array of two axes")
    for name, array in beside.items():
        if array is not None and array.shape != ids.shape:
            raise UserError(f"{name} has the shape {array.shape}, but ids have the shape {ids.shape}: give one value a token")
