"""PointGradients of a number with respect to the values at points of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.layers.tap import Location, Recorder
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.system.errors import UserError


class PointGradients(NamedTuple):
    """Values at points and the gradients of a number with respect to them, as two recorders with the same locations."""

    values: Recorder
    gradients: Recorder


class _Leaves(Recorder):
    """Recorder whose values require a gradient. What follows is computed from the tensor that is recorded.

    Scores and weights are computed beside a fused operation; put in their place, they decide the output.
    """

    def at(self, location: Location, value: Tensor) -> Tensor:
        leaf = value.view_as(value) if value.requires_grad else value.detach().clone().requires_grad_()
        super().at(location, leaf)
        return leaf


def gradients(model: Transformer, loss: Callable[[], Tensor], *points: str) -> PointGradients:
    """Return the values at ``points`` and the gradients of ``loss()``, which calls the model, without dropout.

    loss: function that returns a number, or one for each row, which are added: rows do not read each other, so each
        row's gradient is that of its own number.
    points: names or paths, as for a tap.

    Raises ``UserError`` for a point that the model does not have, and if the number does not depend on any value.
    """
    tap = _Leaves(*points)
    with evaluating(model), torch.enable_grad(), torch.inference_mode(False), model.tapped(tap):
        total = loss().sum()
    values = list(tap.records.values())
    if not values or not total.requires_grad:
        raise UserError(
            f"the number has no gradient at {', '.join(points)}; compute it from the model's outputs with gradients on"
        )
    computed = torch.autograd.grad(total, values, allow_unused=True)
    result = Recorder(*points)
    result.places, result.descriptions = dict(tap.places), tap.descriptions
    for location, value, gradient in zip(tap.records, values, computed, strict=True):
        result.records[location] = torch.zeros_like(value) if gradient is None else gradient
        tap.records[location] = value.detach()
    return PointGradients(tap, result)
