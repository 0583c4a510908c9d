"""Edits of values inside a model: replace, ablate, patch from another run of the model, steer.

Each is a tap, and changes the values at one ``Place``: in a call, ``model(signal, tap=ablate("weights"))``, or in all
calls of a block, ``with model.tapped(ablate(Region("head_outputs", heads=[3]))): …``. Padding stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.layers.tap import CallPositions, Location, Recorder, Tap
from qkv.lens.capture.records import joined_calls
from qkv.lens.capture.regions import Region, axes_of, unpadded
from qkv.system.errors import UserError


@dataclass(frozen=True)
class Site:
    """Value of a call at a location: its axes, the positions of the call, and the region that is edited, as a mask."""

    location: Location
    axes: tuple[str, ...]
    span: CallPositions | None
    mask: Tensor

    def unpadded(self, value: Tensor) -> Tensor:
        """Return a mask that broadcasts to ``value``, True at positions that are not padding."""
        return unpadded(value, self.axes, self.span)


Change = Callable[[Tensor, Site], Tensor]
"""Function (value, its site) -> value to take the region from; it must broadcast to the value."""


Place = Region | Location | str
"""Place that an edit changes: a region, the value of one call, or all values at the name or path of a point."""


class Edit(Tap):
    """Tap that replaces the values at a place by those of ``change``, and nothing else."""

    def __init__(self, place: Place, change: Change):
        self.call = place.call if isinstance(place, Location) else None
        point = place.path if isinstance(place, Location) else place
        self.region = point if isinstance(point, Region) else Region(point)
        super().__init__(self.region.point)
        self.change = change

    def check(self, points: Mapping[str, str]) -> None:
        super().check(points)
        self.region.check(points)

    def at(self, location: Location, value: Tensor) -> Tensor | None:
        if self.call not in (None, location.call):
            return None
        path = location.path
        axes, span = axes_of(self.descriptions.get(path, "")), self.span_of(path)
        mask = self.region.mask(value, axes, span, path)
        if location.point == "scores":  # a hidden key stays hidden
            mask = mask & (value > -torch.inf)
        try:
            return torch.where(mask, self.change(value, Site(location, axes, span, mask)).to(value), value)
        except RuntimeError as error:
            raise UserError(
                f"the replacement at {path!r} does not fit its shape {list(value.shape)}: {error}"
            ) from None


def replace(place: Place, new: Tensor | float | Callable[[Tensor], Tensor]) -> Edit:
    """Replace the values at a place by ``new``: a number, a tensor that broadcasts to the value at the point, or a
    function of the value.
    """
    if callable(new):
        return Edit(place, lambda value, site: new(value))
    return Edit(place, lambda value, site: torch.as_tensor(new, device=value.device).expand(value.shape))


def steer(place: Place, vector: Tensor, factor: float = 1.0) -> Edit:
    """Add ``factor`` · ``vector`` to the values at a place, as in activation steering (Turner et al. 2023).

    ``vector``: broadcasts to the value at the point, such as (D) to a residual stream (B, N, D).
    """
    return Edit(place, lambda value, site: value + factor * vector.to(value))


def ablate(place: Place, by: str = "zero", seed: int = 0) -> Edit:
    """Take the values at a place out: replace them by what tells the model nothing about it.

    by: "zero": 0. "rows": mean over the rows of the batch, position by position. "positions": mean over the row's
    positions outside of the region, or over all if there are none. "resample": value of another row of the batch at the
    same position, drawn with ``seed``; where that row is shorter, the value is kept (Chan et al. 2022).

    Raises ``UserError`` for another name, and during a call whose rows have no value to take the mean of.
    """
    if by not in ABLATIONS:
        raise UserError(f"an ablation is by {', '.join(map(repr, ABLATIONS))}; {by!r} is none of them")
    return Edit(place, _resampled(seed) if by == "resample" else ABLATIONS[by])


def _zero(value: Tensor, site: Site) -> Tensor:
    return torch.zeros_like(value)


def _mean_of_rows(value: Tensor, site: Site) -> Tensor:
    _aligned(value, site, "mean over rows")
    return _mean(value, site.unpadded(value).expand(value.shape), 0)


def _mean_of_positions(value: Tensor, site: Site) -> Tensor:
    if "N" not in site.axes:
        raise UserError(f"the value at {site.location.path!r} has no axis of positions to take a mean over")
    axis, there = site.axes.index("N"), site.unpadded(value).expand(value.shape)
    outside = there & ~site.mask
    return _mean(value, torch.where(outside.any(axis, keepdim=True), outside, there), axis)


def _mean(value: Tensor, used: Tensor, axis: int) -> Tensor:
    """Return the mean along ``axis`` of the elements where ``used`` is True."""
    total = torch.where(used, value, 0).sum(axis, keepdim=True)
    return (total / used.sum(axis, keepdim=True).clamp(min=1)).expand(value.shape)


def _resampled(seed: int) -> Change:
    def change(value: Tensor, site: Site) -> Tensor:
        _aligned(value, site, "value of another row")
        batch = value.shape[0]
        order = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
        other = torch.empty(batch, dtype=torch.long)
        other[order] = order.roll(1)  # one cycle: no row is its own
        other = other.to(value.device)
        there = site.unpadded(value).expand(value.shape)
        return torch.where(there[other], value[other], value)

    return change


ABLATIONS: Mapping[str, Change] = {
    "zero": _zero,
    "rows": _mean_of_rows,
    "positions": _mean_of_positions,
    "resample": _resampled(0),
}
"""Changes of ``ablate`` by name."""


def _aligned(value: Tensor, site: Site, what: str) -> None:
    """Raise ``UserError`` unless the rows have the same positions in the same columns, and there are two or more."""
    past = None if site.span is None else site.span.past
    if site.axes[:1] != ("B",) or value.shape[0] < 2:
        raise UserError(f"the {what} at {site.location.path!r} needs a batch of at least two rows")
    if past is not None and len(set(past)) > 1:
        raise UserError(
            f"the {what} at {site.location.path!r} needs rows that are at the same position; these are at "
            f"{', '.join(map(str, past))}"
        )


def patch(place: Place, run: Recorder | Tensor) -> Edit:
    """Replace the values at a place by those of another run of the model (activation patching, Vig et al. 2020).

    ``run``: recorder of the other run, with the same number of rows or a single one, or the value at the point.
    Positions are those of the rows, so that a run on whole rows can be patched into decoding steps, and the reverse.

    Raises ``UserError`` during a call if the other run lacks a selected position.
    """
    if isinstance(run, Tensor):
        return replace(place, run)
    return Edit(place, lambda value, site: _of_run(run, value, site))


def _of_run(run: Recorder, value: Tensor, site: Site) -> Tensor:
    path = site.location.path
    other, lengths = joined_calls(run, path, site.axes)
    if other.shape == value.shape and (site.span is None or site.span.past is None) and lengths is None:
        return other
    if "N" not in site.axes:
        return other.expand(value.shape)
    axis, count = site.axes.index("N"), value.shape[site.axes.index("N")]
    past = [0] * value.shape[0] if site.span is None or site.span.past is None else list(site.span.past)
    columns = torch.tensor(past)[:, None] + torch.arange(count)
    ends = torch.tensor([other.shape[axis]] * other.shape[0] if lengths is None else lengths).expand(len(past))
    selected = site.mask.expand(value.shape).transpose(1, axis).flatten(2).any(-1).cpu()
    missing = selected & (columns >= ends[:, None])
    if missing.any():
        row, column = missing.nonzero()[0].tolist()
        raise UserError(
            f"the other run has {ends[row]} positions at {path!r} in row {row}; position {columns[row, column]} is "
            "not one of them"
        )
    other = other.expand(len(past), *other.shape[1:]).transpose(1, axis)
    rows = torch.arange(len(past))[:, None]
    return other[rows, columns.clamp(max=other.shape[1] - 1)].transpose(1, axis)
