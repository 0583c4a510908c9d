"""Conversion of series between qkv and published models.

Published models have the channels of a window as an axis of a tensor, not as separate rows.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from qkv.layers.signal import Signal
from qkv.models.transformer import Transformer
from qkv.spec.heads import VectorsHead
from qkv.spec.model import Model
from qkv.spec.signals.series import of_series


def channels_of(spec: Model) -> int:
    """Return the number of rows of a window: the number of channels if each channel is a row, else 1."""
    frontend: Any = spec.frontend
    return frontend.features or 1 if of_series(frontend) and frontend.rows_per_channel else 1


def as_published(spec: Model, values: Tensor) -> Tensor:
    """Reshape values (B · C, T, 1) of windows whose channels are rows to (B, T, C); return other values unchanged."""
    if not of_series(spec.frontend):
        return values
    return values[..., 0].unflatten(0, (-1, channels_of(spec))).transpose(1, 2)


def answer_as_published(model: Transformer, signal: Signal) -> Tensor:
    """Run a model and return its outputs in published form.

    For series these are points (B, H, C) in the units of the values, or vectors (B, C, N, D).
    """
    outputs, channels, head = model(signal)[0], channels_of(model.spec), cast("Any", model.head)
    if not of_series(model.spec.frontend):
        return outputs
    if model.spec.head.kind == VectorsHead.kind:
        return outputs.unflatten(0, (-1, channels))
    frontend: Any = model.frontend
    points = head.form.point(head.restored(outputs, *frontend.level(signal)))
    return points[:, 0].unflatten(0, (-1, channels)).transpose(1, 2)
