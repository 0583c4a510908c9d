"""Patching grids: how much of a metric returns when one place of a corrupted run takes its value from the clean run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from qkv.layers.observable import list_points
from qkv.layers.tap import Location, Recorder
from qkv.lens.capture.edits import patch
from qkv.lens.capture.metrics import Metric
from qkv.lens.capture.regions import HEADS, Region, axes_of
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.system.errors import UserError

Over = Literal["positions", "heads"]


@dataclass(frozen=True)
class PatchingGrid:
    """Grid of L points and C positions or heads, from P pairs of inputs.

    values (L, C): Σ (patched - corrupted) / Σ (clean - corrupted) over the pairs; 1 where the place carries all of the
        difference, 0 where it carries none; NaN where no pair has the position or head.
    low, high (L, C): interval of ``level`` from bootstrap samples of the pairs; equal to the value for a single pair.
    points: path of the point of each row.   over: what the columns are, "positions" or "heads".
    patched (L, C, P), clean (P), corrupted (P): metric of each pair.
    """

    values: Tensor
    low: Tensor
    high: Tensor
    points: tuple[str, ...]
    over: Over
    patched: Tensor
    clean: Tensor
    corrupted: Tensor
    level: float


@torch.no_grad()
def patching_grid(
    model: Transformer,
    clean: Any,
    corrupted: Any,
    metric: Metric,
    over: Over = "positions",
    points: Sequence[str] | None = None,
    level: float = 0.95,
    samples: int = 1000,
    seed: int = 0,
) -> PatchingGrid:
    """Patch each position or head of each point of the clean run into the corrupted run (Meng et al. 2022).

    clean, corrupted: inputs of ``metric``, such as signals of the same lengths, or lists of inputs.
    metric: such as ``logit_difference(answers)`` or ``task_metric(task, "accuracy")``.
    points: names or paths; default: the residual stream before each block, for heads the heads' outputs.
    samples: number of bootstrap samples of the pairs, drawn with ``seed``.

    Raises ``UserError`` if clean and corrupted inputs differ in number or length, or the metric does not differ.
    """
    pairs = _pairs(clean, corrupted)
    paths = _paths(model, points, over)
    with evaluating(model):
        measured = [_Pair(model, paths, metric, *pair) for pair in pairs]
        columns = max(pair.columns(path, over) for pair in measured for path in paths)
        patched = torch.stack(
            [
                torch.stack([torch.cat([pair.patched(path, over, i) for pair in measured]) for i in range(columns)])
                for path in paths
            ]
        )
    before, after = (torch.cat([getattr(pair, name) for pair in measured]) for name in ("corrupted", "clean"))
    if (after - before).sum().abs() < _LEAST * after.abs().sum().clamp(min=1):
        raise UserError("the metric of the clean inputs equals that of the corrupted ones; choose inputs that differ")
    values, low, high = _ratios(patched, before, after, level, samples, seed)
    return PatchingGrid(values, low, high, tuple(paths), over, patched, after, before, level)


_LEAST = 1e-9
"""Difference of the metric, relative to its size, below which a grid is not defined."""


class _Pair:
    """Clean and corrupted inputs with their metrics (B), and the recorded values of the clean run."""

    def __init__(self, model: Transformer, paths: Sequence[str], metric: Metric, clean: Any, corrupted: Any):
        self.model, self.metric, self.inputs = model, metric, corrupted
        with model.tapped(Recorder(*paths)) as self.recorder:
            self.clean = metric(model, clean).double()
        with model.tapped(Recorder(*paths)) as other:
            self.corrupted = metric(model, corrupted).double()
        for place, value in self.recorder.records.items():
            if other.records[place].shape != value.shape or self._lengths(place) != _lengths_at(other, place):
                raise UserError(
                    f"clean and corrupted inputs differ in length at {place.path!r}; give inputs whose positions "
                    "correspond"
                )

    def columns(self, path: str, over: Over) -> int:
        """Return the number of positions or heads at a point."""
        axes, allowed = axes_of(self.recorder.descriptions[path]), HEADS if over == "heads" else ("N",)
        return self.recorder[path].shape[next(i for i, axis in enumerate(axes) if axis in allowed)]

    def patched(self, path: str, over: Over, i: int) -> Tensor:
        """Return the metric (B) with column ``i`` of a point from the clean run; NaN where a row has no such column."""
        if i >= self.columns(path, over):
            return torch.full_like(self.corrupted, torch.nan)
        region = Region(path, heads=[i]) if over == "heads" else Region(path, positions=[i])
        with self.model.tapped(patch(region, self.recorder)):
            result = self.metric(self.model, self.inputs).double()
        (place,) = (place for place in self.recorder.records if place.path == path)
        lengths = self._lengths(place)
        if over == "heads" or lengths is None:
            return result
        return result.masked_fill(torch.tensor(lengths, device=result.device) <= i, torch.nan)

    def _lengths(self, place: Location) -> list[int] | None:
        return _lengths_at(self.recorder, place)


def _lengths_at(recorder: Recorder, place: Location) -> list[int] | None:
    span = recorder.places[place]
    return None if span is None or span.lengths is None else span.lengths.tolist()


def _pairs(clean: Any, corrupted: Any) -> list[tuple[Any, Any]]:
    if not isinstance(clean, list | tuple):
        return [(clean, corrupted)]
    if not isinstance(corrupted, list | tuple) or len(clean) != len(corrupted) or not clean:
        raise UserError("clean and corrupted inputs are two lists of the same length, or two single inputs")
    return list(zip(clean, corrupted, strict=True))


def _paths(model: Transformer, points: Sequence[str] | None, over: Over) -> list[str]:
    """Return the paths of the points that the grid patches, in the order of the model."""
    listed = list_points(model)
    name = "head_outputs" if over == "heads" else "blocks.*.branches.0.residual_before"
    recorder = Recorder(*(points if points is not None else (name,)))
    recorder.check(listed)
    paths = [path for path in listed if recorder.receives(path)]
    for path in paths:
        region = Region(path, heads=[0]) if over == "heads" else Region(path, positions=[0])
        region.check(listed)
    return paths


def _ratios(
    patched: Tensor, before: Tensor, after: Tensor, level: float, samples: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (values, low, high), each (L, C), of the ratio of sums over the pairs in the last axis of ``patched``."""
    there = ~patched.isnan()
    changes = torch.where(there, patched - before, 0)
    wholes = torch.where(there, after - before, 0)
    count = len(before)
    draws = torch.randint(count, (samples, count), generator=torch.Generator().manual_seed(seed))
    weights = torch.nn.functional.one_hot(draws, count).sum(1).to(changes).T
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2]).to(changes)
    drawn = [(change @ weights / (whole @ weights)) for change, whole in zip(changes, wholes, strict=True)]
    low, high = torch.stack([each.nanquantile(ends, dim=-1) for each in drawn], 1)
    return changes.sum(-1) / wholes.sum(-1), low, high
