"""Sections of the report on forecasts: forecasts over the truth, and errors by step and by channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.spec.signals.series import Series
from qkv.tasks.series.forecast_errors import Errors, interval

_SHOWN = 3
"""Number of forecasts shown."""
_CHANNELS = 12
"""Maximum number of channels in the table."""
NAMES = {"repeat_last": "repeat last", "seasonal": "seasonal naive", "dlinear": "DLinear"}
"""Display names of the baselines."""


def forecast_charts(
    past: Tensor, future: Tensor, values: Tensor, form: Any, processor: Series, horizon: int
) -> list[dict[str, Any]]:
    """Build charts of some forecasts, in the units of the data; step 0 is the last known step.

    past (rows, C, T): windows.   future (rows, C, H): true values.   values (rows, C, H, 1 + levels): point forecasts
    and quantiles. The chart of row i shows the channel i modulo C.
    """
    charts, count = [], min(_SHOWN, len(past))
    for row in range(count):
        channel = row % past.shape[1]
        before = min(past.shape[2], 3 * horizon)
        history = past[row, channel, -before:].tolist()
        lines = [
            {"name": "past", "x": list(range(1 - before, 1)), "y": history},
            _ahead("truth", [history[-1], *future[row, channel].tolist()]),
            _ahead("forecast", [history[-1], *values[row, channel, :, 0].tolist()]),
        ]
        ends = next(((share, pair) for share in (0.8, 0.9) if (pair := interval(form, share))), None)
        if ends is not None:
            share, pair = ends
            for name, i in zip(("lower", "upper"), pair, strict=True):
                lines.append(_ahead(f"{name} end of {100 * share:.0f} %", values[row, channel, :, 1 + i].tolist(), 1))
        title = f"Forecast {row + 1}" + (f", {processor.channels[channel]}" if len(processor.channels) > 1 else "")
        charts.append({"kind": "curves", "title": title, "x_label": "step", "y_label": "value", "lines": lines})
    return charts


def _ahead(name: str, values: Sequence[float], first: int = 0) -> dict[str, Any]:
    plain = [None if value != value else value for value in values]
    return {"name": name, "x": list(range(first, first + len(plain))), "y": plain}


def by_step(total: Errors, baselines: Mapping[str, Errors]) -> dict[str, Any]:
    """Build the table of the MSE of the model and of the baselines at some steps of the horizon."""
    horizon = total.count.shape[1]
    steps = sorted(
        {1, 2, 4, 8, *(round(horizon * share) for share in (0.25, 0.5, 0.75, 1))} & set(range(1, horizon + 1))
    )
    every = {"the model": total, **{NAMES[name]: each for name, each in baselines.items()}}
    curves = [each.by_step("squared") for each in every.values()]
    rows: list[list[Any]] = [[step, *(f"{curve[step - 1]:.4f}" for curve in curves)] for step in steps]
    rows.append(["all", *(f"{each.mean('squared'):.4f}" for each in every.values())])
    rows.append(["all, MAE", *(f"{each.mean('absolute'):.4f}" for each in every.values())])
    note = "Mean squared error of standardised values. DLinear (Zeng et al. 2023) was trained in this run."
    return {"kind": "examples", "title": "Errors by step", "note": note, "columns": ["step", *every], "rows": rows}


def by_channel(total: Errors, processor: Series) -> list[dict[str, Any]]:
    """Build the table of the errors per channel; empty for a single channel."""
    if len(processor.channels) < 2:
        return []
    count = total.count.sum(1).clip(min=1)
    squared, absolute = total.squared.sum(1) / count, total.absolute.sum(1) / count
    order = np.argsort(-squared)[:_CHANNELS]
    rows = [
        [
            processor.channels[i],
            f"{squared[i]:.4f}",
            f"{absolute[i]:.4f}",
            f"{squared[i] ** 0.5 * processor.deviation[i]:.4g}",
            f"{absolute[i] * processor.deviation[i]:.4g}",
        ]
        for i in order
    ]
    columns = ["channel", "MSE", "MAE", "RMSE in units", "MAE in units"]
    return [{"kind": "examples", "title": "Errors by channel", "columns": columns, "rows": rows}]


def spread(count: int) -> Tensor:
    """Return the indices of a few evenly spaced windows out of ``count``."""
    return torch.linspace(0, max(0, count - 1), min(_SHOWN, count)).long()
