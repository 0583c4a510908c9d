"""Record the values at points of a model, and replace them by others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.layers.tap import Location, Recorder, Tap, matches
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer

Values = Tensor | Callable[[Tensor], Tensor]
"""Replacement of a value: a tensor of the same shape, or a function of the value."""


@torch.no_grad()
def record(
    model: Transformer, signal: Signal | Tensor, *points: str, source: Signal | Tensor | None = None
) -> Recorder:
    """Run ``model`` once on ``signal``, without dropout; return the values at ``points``, which are names or paths (see
    ``Tap``).

    source: input of the encoder, if the model has one. Raises ``UserError`` for a point that the model does not have.
    """
    tap = Recorder(*points)
    with evaluating(model):
        memory = None if source is None else model.encode(source, tap)
        model(signal, memory=memory, tap=tap)
    return tap


class Replacement(Tap):
    """Tap that replaces values at points of a model, as in activation patching (Vig et al. 2020) and ablation.

    values: point -> replacement. A name or path of a point (``Tap``) refers to all calls, a ``Location`` to one call.
    The first key that fits a location is used.
    """

    def __init__(self, values: Mapping[str | Location, Values]):
        super().__init__(*(key if isinstance(key, str) else key.path for key in values))
        self.values = values

    def at(self, location: Location, value: Tensor) -> Tensor | None:
        for key, new in self.values.items():
            if key == location or (isinstance(key, str) and matches(key, location.path)):
                return new(value) if callable(new) else new
        return None
