"""Forecasts as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.data.series.read import Panel
from qkv.spec.signals.series import Series


def columns_of(processor: Series) -> dict[str, str]:
    """Return role -> column of the training data, so that another table is read in the same way."""
    several = {"value": processor.channels, "known": processor.known}
    columns = {role: name for role, name in (("time", processor.time), ("series", processor.series)) if name}
    return columns | {role: ",".join(names) for role, names in several.items() if names}


def places_of(processor: Series) -> dict[str, str]:
    """Return the columns that identify a forecast, by role: series name, time, and channel if there are several."""
    columns = {"series": processor.series} if processor.series else {}
    return {
        **columns,
        "time": processor.time or "step",
        **({"channel": "column"} if len(processor.channels) > 1 else {}),
    }


def in_units_of(values: Tensor, processor: Series) -> Tensor:
    """Convert standardised values (B, C, …) to the units of the data."""
    count = values.shape[1]
    shape = (count, *(1,) * (values.dim() - 2))
    mean, deviation = (
        torch.tensor(each[:count]).to(values).view(shape) for each in (processor.mean, processor.deviation)
    )
    return values * deviation + mean


def forecast_rows(panel: Panel, processor: Series, values: Any, levels: Sequence[float]) -> list[dict[str, Any]]:
    """Build table rows of the forecasts ``values[series][channel][step]`` = [point, quantiles …] after each series."""
    columns = places_of(processor)
    names = ["answer", *(f"p{100 * level:g}" for level in levels)]
    rows = []
    for each, of_series in zip(panel.series, values, strict=True):
        stamps = [panel.text(each, i) for i in range(each.length, len(each.stamps))]
        for step, stamp in enumerate(stamps):
            for channel, of_channel in zip(processor.channels, of_series, strict=True):
                place = {"series": each.name, "time": stamp if processor.time else step + 1, "channel": channel}
                fields = {column: place[role] for role, column in columns.items()}
                rows.append(fields | dict(zip(names, of_channel[step], strict=True)))
    return rows
