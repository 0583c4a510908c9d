"""Argument checks shared by objectives and synthetic data."""

from __future__ import annotations

import numpy as np

from qkv.system.errors import UserError


def check_share(name: str, value: float) -> None:
    """Raise ``UserError`` unless 0 <= ``value`` <= 1."""
    if not 0 <= value <= 1:
        raise UserError(f"{name} is {value}, but it is a fraction: give a number from 0 to 1")


def check_at_least(name: str, value: float, least: float) -> None:
    """Raise ``UserError`` unless ``value`` is finite and at least ``least``."""
    if not least <= value < float("inf"):
        raise UserError(f"{name} is {value}, but it must be at least {least}")


def check_one_row(ids: np.ndarray) -> None:
    """Raise ``UserError`` unless ``ids`` has one axis."""
    if ids.ndim != 1:
        raise UserError(
            f"ids have the shape {ids.shape}, but a one-dimensional array (the tokens of one text) is required"
        )


def check_rows(ids: np.ndarray, **beside: np.ndarray | None) -> None:
    """Raise ``UserError`` unless ``ids`` has a shape (B, N) and every array in ``beside`` has the same shape."""
    if ids.ndim != 2:
        raise UserError(f"ids have the shape {ids.shape}, but a two-dimensional array (a batch of rows) is required")
    for name, array in beside.items():
        if array is not None and array.shape != ids.shape:
            raise UserError(
                f"{name} has the shape {array.shape}, but ids have the shape {ids.shape}: give one value per token"
            )
