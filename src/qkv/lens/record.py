"""Record the values at points of a model."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer


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
