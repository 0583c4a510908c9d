"""Base class of modules that declare points, at which a tap can read and replace values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from qkv.layers.tap import Tap
from qkv.system.errors import UserError

Points = Mapping[str, str]
"""Points of a module: description of the value, with its shape, by the point's name."""

POINTS: Points = {
    "residual_before": "residual stream before the branch (B, N, D)",
    "input": "vectors that the branch reads, after its norm (B, N, D)",
    "q": "queries (B, H, N, Dk), before any rotation",
    "k": "keys of the call's positions (B, G, N, Dk), before any rotation",
    "v": "values of the call's positions (B, G, N, Dv)",
    "scores": "masked attention scores (B, H, N, M), -inf where a key is hidden",
    "weights": "attention weights (B, H, N, M), before dropout",
    "head_outputs": "output of each head (B, H, N, Dv), as the output projection reads it",
    "gate": "gate before its activation function (B, N, E)",
    "up": "vectors that the gate multiplies (B, N, F)",
    "pre_activation": "vectors before the activation function (B, N, F)",
    "activation": "vectors that the last linear map reads (B, N, F)",
    "log_decay": "logarithm of the decay of the state (B, H, N)",
    "state": "state after each position (B, H, N, Dk, Dv); outputs and the next state are computed from a replacement",
    "output": "output of the branch (B, N, D)",
    "residual_after": "residual stream after the branch (B, N, D)",
    "scale": "divisor of a norm (B, N, 1)",
}
"""Standard points, which several kinds of modules have. A module may declare others."""


def standard(*names: str) -> Points:
    """Return the points of ``POINTS`` with these names."""
    return {name: POINTS[name] for name in names}


class Observable:
    """Base class of modules that declare points. A module without a name offers no values to a tap."""

    name: str | None = None
    """Path of the module in the model, such as ``blocks.0.branches.1``; "" for the model itself."""

    def points(self) -> Points:
        """Return the points of this module; the name may be a path below the module, such as "norm.output"."""
        return {}

    def assign_name(self, name: str) -> None:
        """Set the path of this module, and of modules in it that have points of their own."""
        self.name = name

    def path_of(self, point: str) -> str:
        """Return the path of a point."""
        return f"{self.name}.{point}" if self.name else point

    def offers(self, tap: Tap | None, *points: str) -> bool:
        """Return True if ``tap`` receives one of the points."""
        return tap is not None and self.name is not None and any(tap.receives(self.path_of(p)) for p in points)

    def offer(self, tap: Tap | None, point: str, value: Tensor) -> Tensor:
        """Pass ``value`` to the tap, if it receives the point; return the replacement, or ``value`` itself."""
        return value if tap is None or self.name is None else tap.offer(self.path_of(point), value)

    def offer_computed(self, tap: Tap | None, point: str, compute: Callable[[], Tensor]) -> Tensor | None:
        """Pass ``compute()`` to the tap; return the replacement, or None if there is none.

        ``compute`` is called only if the tap receives the point.
        """
        if tap is None or not self.offers(tap, point):
            return None
        value = compute()
        replacement = tap.offer(self.path_of(point), value)
        return None if replacement is value else replacement


def list_points(model: nn.Module) -> dict[str, str]:
    """Return the points of ``model`` by path, in the order of its modules, with their descriptions.

    Nothing is computed.
    """
    modules = [module for module in model.modules() if isinstance(module, Observable) and module.name is not None]
    return {module.path_of(name): about for module in modules for name, about in module.points().items()}


def check_tap(tap: Tap | None, model: nn.Module) -> None:
    """Raise ``UserError`` if ``tap`` is not a tap, or selects a point that ``model`` does not have."""
    if tap is None:
        return
    if not isinstance(tap, Tap):
        raise UserError(f'a tap is an object of the class Tap, such as Recorder("weights"); this is {tap!r}')
    tap.check(list_points(model))
