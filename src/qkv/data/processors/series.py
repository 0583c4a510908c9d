"""Processor of rows that are series of numbers, each of any length."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from qkv.data.batching.padding import lengths_or_none
from qkv.data.processors.processor import Processor
from qkv.data.records.columns.series_values import array_of, channel_names
from qkv.data.records.readers.series_tables import holds_series
from qkv.data.records.table import Table
from qkv.data.records.values import Unusable, readable
from qkv.data.series.statistics import statistics
from qkv.data.series.windows import filled
from qkv.layers.signal import Signal
from qkv.spec.register import implements
from qkv.spec.signals.series import Series
from qkv.system.errors import UserError

_DRAWN, _LINES = 200, 4
"""Maximum number of points of a line in a picture, and maximum number of lines."""
_MOST = 1e6
"""Maximum absolute standardised value; larger values are clipped."""
_WIDE, _HIGH = 96, 48
_COLOURS = ("#2563eb", "#d97706", "#059669", "#7c3aed")


@implements(Series)
class SeriesProcessor(Processor):
    """Series (T,) or (T, C), C channels -> standardised values (B, T, C); a missing value repeats the value before it.

    ``gaps``: number of series with missing values, and number of missing values, so far.
    """

    example = "'[0.1, 0.5, …]'"
    simple = "statistics"
    spec: Series

    def __init__(self, spec: Series):
        super().__init__(spec)
        self.gaps = [0, 0]

    @classmethod
    def recognises(cls, source: str, table: Callable[[], Table | None]) -> bool:
        rows = table()
        return rows is not None and holds_series(rows)

    def fitted(self, values: Sequence[Any]) -> Series:
        names = self.spec.channels or next(filter(None, map(channel_names, values)), ())
        arrays = readable(lambda value: array_of(value, names), values, "series")
        counts = [each.shape[1] for each in arrays]
        channels = max(set(counts), key=counts.count)
        joined = np.concatenate([each for each in arrays if each.shape[1] == channels])
        names = names if len(names) == channels else tuple(str(i + 1) for i in range(channels))
        if self.spec.mean:
            return self.spec.changed(rows=True, channels=names)
        empty = next((name for name, column in zip(names, joined.T, strict=True) if np.isnan(column).all()), None)
        if empty is not None:
            raise UserError(f"the channel {empty!r} has no number in the training split; remove it")
        mean, deviation = np.nanmean(joined, 0), np.nanstd(joined, 0)
        deviation = np.where(deviation > 1e-12 * np.maximum(1.0, np.abs(mean)), deviation, 1.0)
        return self.spec.changed(rows=True, channels=names, mean=mean.tolist(), deviation=deviation.tolist())

    def encode(self, value: Any) -> np.ndarray:
        values = self._read(value)
        missing = int(np.isnan(values).sum())
        if missing:
            self.gaps = [self.gaps[0] + 1, self.gaps[1] + missing]
        return self._scaled(values)

    def _read(self, value: Any) -> np.ndarray:
        """Return the values (T, C) of a raw series. Raises ``Unusable``, also for another number of channels."""
        values, channels = array_of(value, self.spec.channels), len(self.spec.channels)
        if channels and values.shape[1] != channels:
            raise Unusable(f"the series has {values.shape[1]} channels, and the model reads {channels}")
        return values

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        """Standardise values (T, C) and fill their gaps; a channel without any number gets the mean of the training
        data.
        """
        complete = filled(np.where(np.isnan(values).all(0), self.spec.mean, values))
        scaled = (complete - np.array(self.spec.mean)) / np.array(self.spec.deviation)
        return scaled.clip(-_MOST, _MOST).astype(np.float32)

    def signal(self, encoded: Sequence[np.ndarray]) -> Signal:
        longest = max(map(len, encoded))
        values = np.zeros((len(encoded), longest, encoded[0].shape[1]), np.float32)
        for row, each in enumerate(encoded):
            values[row, : len(each)] = each
        tensor = torch.from_numpy(values)
        return Signal(tensor, lengths_or_none(tensor, torch.tensor([len(each) for each in encoded])))

    def features(self, encoded: np.ndarray) -> np.ndarray:
        return statistics(encoded)

    def notes(self) -> list[str]:
        if not self.gaps[0]:
            return []
        return [f"{self.gaps[1]:,} values of {self.gaps[0]:,} series are missing; the value before is used"]

    def shown(self, value: Any) -> str:
        values = array_of(value, self.spec.channels)
        some = ", ".join(f"{each:.4g}" for each in values[:3, 0])
        size = f"{len(values):,} step{'s' * (len(values) > 1)}"
        of = f" of {values.shape[1]} channels" if values.shape[1] > 1 else ""
        return f"{size}{of}: {some}{', …' if len(values) > 3 else ''}"

    def picture(self, value: Any) -> str | None:
        try:
            values = self._scaled(self._read(value))
        except Unusable:
            return None
        values = values[np.unique(np.linspace(0, len(values) - 1, min(_DRAWN, len(values))).round().astype(int))]
        low, high = float(values.min()), float(values.max())
        x = np.linspace(2, _WIDE - 2, len(values)) if len(values) > 1 else np.array([_WIDE / 2])
        y = 2 + (_HIGH - 4) * (high - values) / (high - low if high > low else 1.0)
        lines = [
            f'<polyline fill="none" stroke="{colour}" points="{_points(x, column)}"/>'
            for column, colour in zip(y.T, _COLOURS, strict=False)
        ]
        drawn = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {_HIGH}">{"".join(lines)}</svg>'
        return "data:image/svg+xml;base64," + base64.b64encode(drawn.encode()).decode()


def _points(x: np.ndarray, y: np.ndarray) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
