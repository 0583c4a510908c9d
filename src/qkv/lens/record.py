"""Record the values at points of a model, and put others in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.layers.tap import Location, Recorder, Tap, matches
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer

Values = Tensor | Callable[[Tensor], Tensor]
"""Tensor of a value's shape, or function of the value, that replaces it."""


@torch.no_grad()
def record(
    model: Transformer, signal: Signal | Tensor, *points: str, source: Signal | Tensor | None = None
) -> Recorder:
    """Run ``model`` once on ``signal``, without dropout; return the values at ``points``, names or paths (``Tap``).

    source: input of the encoder, if the model has one. Raises ``UserError`` for a point that the model does not have.
    """
    tap = Recorder(*points)
    with evaluating(model):
        memory = None if source is None else model.encode(source, tap)
        model(signal, memory=memory, tap=tap)
    return tap


class Replacement(Tap):
    """Tap that replaces values, as for activation patching (Vig et al. 2020) and ablation.

    values: replacements by the name or path of the point (``Tap``), for all calls, or by ``Location``, for one call.
    The first that fits a location is used.
    """

    def __init__(self, values: Mapping[str | Location, Values]):
        super().__init__(*(key if isinstance(key, str) else key.path for key in values))
        self.values = values

    def at(self, location: Location, value: Tensor) -> Tensor | None:
        for key, new in self.values.items():
            if key == location or (isinstance(key, str) and matches(key, location.path)):
                return new(value) if callable(new) else new
        return None
