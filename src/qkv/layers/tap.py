"""TapSequence: read and replace values inside a model during a forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from torch import Tensor

from qkv.system.errors import UserError


class Location(NamedTuple):
    """Location of a value in a computation: the ``call``-th value at a ``point`` of the ``module`` with this path.

    A tap counts calls from 0 for each point of each module, from the construction of the tap: each repetition of a
    block, each segment and each decoding step is a further call.
    """

    call: int
    module: str
    point: str

    @property
    def path(self) -> str:
        """Path of the point, such as ``blocks.0.branches.1.q``."""
        return f"{self.module}.{self.point}" if self.module else self.point


class CallPositions(NamedTuple):
    """Positions of a call in the B rows of a stack: ``count`` of each row, padding included.

    past (B): number of positions of each row that earlier calls with the same state have read; None for a call on whole
    rows. lengths (B): number of the call's positions that are not padding, which is on the right; None: all.
    """

    count: int
    past: Sequence[int] | None = None
    lengths: Tensor | None = None


class Tap:
    """Base class of taps. A tap receives the values at the points that it selects, and may replace them.

    A point is selected by its name, such as "weights", in all modules, or by its path, such as
    "blocks.0.branches.1.q"; ``*`` in a step of the path matches any text, as in "blocks.*.branches.0.weights". A tap
    without points receives nothing. A model refuses a tap that selects a point that the model does not have.
    """

    def __init__(self, *points: str):
        self.points = points
        self.spans: dict[str, CallPositions] = {}
        """Positions of the current call, by the path of the stack: "" for the model's own, "encoder", "latents"."""
        self.descriptions: Mapping[str, str] = {}
        """Descriptions of the points of the model by path, once the tap is checked."""
        self._selected: dict[str, bool] = {}
        self._calls = Counter[str]()

    def at(self, location: Location, value: Tensor) -> Tensor | None:
        """Receive ``value``; return its replacement, or None for no change. ``value`` must not be changed in place."""
        return None

    def enter(self, stack: str, span: CallPositions) -> None:
        """Receive the positions of the call that begins in ``stack``, before the values of its points."""
        self.spans[stack] = span

    def span_of(self, path: str) -> CallPositions | None:
        """Return the positions of the current call in the stack of the point ``path``; None if no call has begun."""
        return self.spans.get(path.partition(".")[0], self.spans.get(""))

    def receives(self, path: str) -> bool:
        """Return True if the tap selects the point with this path."""
        if path not in self._selected:
            self._selected[path] = any(matches(pattern, path) for pattern in self.points)
        return self._selected[path]

    def offer(self, path: str, value: Tensor) -> Tensor:
        """Pass ``value`` to the tap if it selects the point; return the replacement, or ``value`` itself.

        Raises ``UserError`` if the replacement has another shape.
        """
        if not self.receives(path):
            return value
        module, _, point = path.rpartition(".")
        location = Location(self._calls[path], module, point)
        self._calls[path] += 1
        replacement = self.at(location, value)
        if replacement is None:
            return value
        if replacement.shape != value.shape:
            raise UserError(
                f"the replacement at {path!r} has the shape {list(replacement.shape)}; the value there has "
                f"{list(value.shape)}"
            )
        return replacement.to(value)

    def check(self, points: Mapping[str, str]) -> None:
        """Raise ``UserError`` if the tap selects a point that a model does not have.

        ``points``: descriptions of the model's points by path, see ``list_points``.
        """
        self.descriptions, paths = points, list(points)
        for pattern in self.points:
            if not any(matches(pattern, path) for path in paths):
                raise UserError(_refusal(pattern, paths))


class Recorder(Tap):
    """Tap that records values by location: ``Recorder("weights")["blocks.0.branches.0.weights"]``."""

    def __init__(self, *points: str):
        super().__init__(*points)
        self.records: dict[Location, Tensor] = {}
        self.places: dict[Location, CallPositions | None] = {}
        """Positions of the call of each record."""

    def at(self, location: Location, value: Tensor) -> Tensor | None:
        self.records[location], self.places[location] = value, self.span_of(location.path)
        return None

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Iterate over (path, value) in the order of computation."""
        return ((location.path, value) for location, value in self.records.items())

    def calls(self, path: str) -> list[Tensor]:
        """Return the values at a path, one for each call."""
        return [value for other, value in self if other == path]

    def __getitem__(self, path: str) -> Tensor:
        """Return the value at ``path``. Raises ``UserError`` if there is none, or one for each of several calls."""
        values = self.calls(path)
        if len(values) != 1:
            what = f"{len(values)} values, one for each call; use calls({path!r})" if values else "no value"
            raise UserError(f"the tap has recorded {what} at {path!r}" if not values else f"{path!r} has {what}")
        return values[0]


class TapSequence(Tap):
    """Several taps as one: each receives the value that the taps before it leave."""

    def __init__(self, *taps: Tap):
        super().__init__(*(point for tap in taps for point in tap.points))
        self.taps = taps

    def enter(self, stack: str, span: CallPositions) -> None:
        for tap in self.taps:
            tap.enter(stack, span)

    def receives(self, path: str) -> bool:
        return any(tap.receives(path) for tap in self.taps)

    def offer(self, path: str, value: Tensor) -> Tensor:
        for tap in self.taps:
            value = tap.offer(path, value)
        return value

    def check(self, points: Mapping[str, str]) -> None:
        for tap in self.taps:
            tap.check(points)


def matches(pattern: str, path: str) -> bool:
    """Return True if ``pattern`` is the name of the point at the end of ``path``, or its path; see ``Tap``."""
    steps, names = path.split("."), pattern.split(".")
    steps = steps[-1:] if len(names) == 1 else steps
    return len(steps) == len(names) and all(map(fnmatchcase, steps, names))


def _refusal(pattern: str, paths: list[str]) -> str:
    name = pattern.rpartition(".")[2]
    places = [path for path in paths if matches(name, path)]
    if places and name != pattern:
        return f"the model has no point {pattern!r}; its points of this name are {', '.join(places)}"
    names = dict.fromkeys(path.rpartition(".")[2] for path in paths)
    return f"the model has no point {pattern!r}; its points are {', '.join(names)}"
