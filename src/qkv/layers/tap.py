"""Taps: observe and replace values inside a model during a forward pass."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Tap = Callable[[str, Tensor], Tensor | None]
"""Function called with a dotted path and the value at that path; a returned tensor replaces the value.

A tap with an attribute ``points`` receives the points of ``POINTS`` named there, any other tap receives ``USUAL``.
"""

POINTS = {
    "frontend": "vectors of the input (B, N, D); path frontend",
    "before": "residual stream that a branch reads (B, N, D); path blocks.0.branches.1.before",
    "q": "queries (B, H, N, Dk), before any rotation; path blocks.0.branches.1.q",
    "k": "keys of the call's positions (B, G, N, Dk), before any rotation; path blocks.0.branches.1.k",
    "v": "values of the call's positions (B, G, N, Dv); path blocks.0.branches.1.v",
    "scores": "masked attention scores (B, H, N, M), -inf where hidden; path blocks.0.branches.1.scores; "
    "cannot be replaced",
    "weights": "attention weights (B, H, N, M), before dropout; path blocks.0.branches.1.weights; cannot be replaced",
    "router": "weights of experts (B, N, E), 0 for those that are not chosen; path blocks.0.branches.1.router; "
    "cannot be replaced",
    "output": "output of a branch (B, N, D); path blocks.0.branches.1",
    "after": "residual stream after a branch (B, N, D); path blocks.0.branches.1.after",
    "norm": "output of the final norm (B, N, D); path norm",
    "head": "output of the head; path head",
}
"""Points that a tap can receive. Scores and weights are computed for the tap only, by the reference implementation."""
USUAL = frozenset({"frontend", "output"})


class Recorder:
    """Tap that records values by path, such as ``Recorder("weights").seen["blocks.0.branches.0.weights"]``."""

    def __init__(self, *points: str):
        """Record ``points``, names in ``POINTS``. Raises ``ValueError`` for an unknown name."""
        unknown = [point for point in points if point not in POINTS]
        if unknown:
            raise ValueError(f"there is no point {unknown[0]!r}; there are {', '.join(POINTS)}")
        self.points = frozenset(points)
        self.seen: dict[str, Tensor] = {}

    def __call__(self, name: str, value: Tensor) -> None:
        self.seen[name] = value


def receives(tap: Tap | None, point: str) -> bool:
    """True if ``tap`` is given and receives the values of ``point``."""
    return tap is not None and point in getattr(tap, "points", USUAL)


def tapped(tap: Tap | None, point: str, path: str, value: Tensor) -> Tensor:
    """Pass ``value`` to the tap if it receives ``point``; return the tap's replacement, or ``value`` if none."""
    if tap is None or not receives(tap, point):
        return value
    replaced = tap(path, value)
    return value if replaced is None else replaced
