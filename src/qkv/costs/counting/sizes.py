"""Reduce a deep model to a few layers, which represent all others when its cost is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qkv.spec.model import Latents, Layered, Model, Stack

_FEW = 3
"""Number of layers that are run of each kind of layer: the first, a middle one and the last.

The first layer saves tensors that all layers share, and in the last layer the gradients of these tensors begin.
"""


@dataclass(frozen=True)
class LayerPlan:
    """Plan of a stack's layers. runs: for each layer, in order of execution, the index of the layer that is run in its
    place.
    """

    runs: tuple[int, ...]

    @property
    def times(self) -> list[int]:
        """Number of layers that each executed layer represents."""
        return [self.runs.count(i) for i in range(max(self.runs, default=-1) + 1)]


@dataclass(frozen=True)
class Reduced:
    """Model with few layers, and for each stack the plan by which they represent all its layers."""

    model: Model
    blocks: LayerPlan
    encoder: LayerPlan
    latents: LayerPlan
    inner: LayerPlan


def reduced(model: Model, whole: bool = False) -> Reduced:
    """Reduce a model to at most three layers of each kind. ``whole``: keep all layers. A model with a depth average or
    with several rounds always keeps all layers.
    """
    encoder, changes = model.encoder, dict[str, Any]()
    latents = encoder.latents if encoder else model.latents
    stacks = [stack for stack in (model, encoder, latents) if stack is not None]
    whole = (
        whole or any(stack.depth_average for stack in stacks) or max(model.rounds, encoder.rounds if encoder else 1) > 1
    )
    if encoder and encoder.memory == "layers":  # layer i of the decoder reads layer i of the encoder
        plan = beside = _plan(list(zip(model.layers, encoder.layers, strict=True)), whole)
    else:
        plan, beside = _plan(_placed(model), whole), _plan(encoder.layers if encoder else (), whole)
    rounds = latents.rounds if latents and whole else min(latents.rounds, _FEW) if latents else 1
    fewer = {"latents": latents.changed(rounds=rounds)} if latents else {}
    if encoder:
        changes["encoder"] = encoder.changed(**_listed(encoder, beside), **fewer)
    else:
        changes |= fewer
    small = model.changed(**_listed(model, plan), **changes)
    segmentation = model.segmentation
    inner = segmentation.inner.depth if segmentation and segmentation.inner else 0
    return Reduced(
        small,
        LayerPlan(_walked(model, plan)),
        LayerPlan(_walked(encoder, beside) if encoder else ()),
        _rounds(latents, rounds) if latents else LayerPlan(()),
        LayerPlan(tuple(range(inner))),
    )


def _placed(model: Model) -> Sequence[Any]:
    """Return the layers of a model; if blocks merge neighbours, each with its width and its grid."""
    if not model.merges:
        return model.layers
    return list(zip(model.layers, model.widths(model.width), model.places, strict=True))


def _plan(layers: Sequence[Any], whole: bool) -> tuple[int, ...]:
    """Return for each layer the index of the executed layer that represents it."""
    places: dict[Any, list[int]] = {}
    for i, layer in enumerate(layers):
        places.setdefault(layer, []).append(i)
    stands = {
        i: i if whole or len(same) <= _FEW or i in (same[0], same[-1]) else same[1]
        for same in places.values()
        for i in same
    }
    order = {i: place for place, i in enumerate(sorted(set(stands.values())))}
    return tuple(order[stands[i]] for i in range(len(layers)))


def _walked(stack: Stack, plan: tuple[int, ...]) -> tuple[int, ...]:
    """Return the plan for all rounds of a stack; if layers are repeated, all of them are run."""
    return plan if stack.rounds == 1 else tuple(range(len(stack.walk)))


def _listed(stack: Layered, plan: tuple[int, ...]) -> dict[str, Any]:
    """Return the changes to a stack's spec that keep only its executed layers."""
    if len(set(plan)) == len(plan):
        return {}
    return {"num_layers": None, "blocks": tuple(stack.layers[plan.index(i)] for i in range(max(plan) + 1))}


def _rounds(latents: Latents, rounds: int) -> LayerPlan:
    """Plan the layers of latents: one middle round represents all rounds between the first and the last."""
    each = latents.depth - latents.once

    def stands(step: int) -> int:
        turn, place = divmod(step - latents.once, each)
        if step < latents.once or turn == 0:
            return step
        return latents.once + (rounds - 1 if turn == latents.rounds - 1 else 1) * each + place

    return LayerPlan(tuple(stands(step) for step in range(len(latents.walk))))
