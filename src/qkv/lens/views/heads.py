"""Terms that each head of a branch adds to the residual stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from qkv.layers.context import Context
from qkv.layers.linear.quantized import QuantizedLinear
from qkv.layers.norms import Norm
from qkv.layers.tap import Location
from qkv.lens.capture.edits import replace
from qkv.models.block import Slot
from qkv.models.transformer import Transformer

_TOLERANCE = 1e-3
"""Largest difference of the sum of all heads from the output, relative to the largest output."""
_ROUNDING = 0.05
"""The same with an output projection in 8 or 4 bits, which rounds what it reads."""


def list_slots(model: Transformer) -> list[Slot]:
    """Return the branches of the model's own blocks with their norms and residual connections."""
    return [slot for block in model.blocks for slot in block.branches]  # type: ignore[union-attr]


def head_points(model: Transformer) -> list[str]:
    """Return the points that ``head_terms`` reads."""
    slots = [slot for slot in list_slots(model) if "head_outputs" in slot.body.points()]
    norms = [norm for slot in slots if (norm := _norm_after(slot)) is not None and "scale" in norm.points()]
    points = [f"{slot.name}.{point}" for slot in slots for point in ("head_outputs", "output")]
    return [*points, *(f"{norm.name}.scale" for norm in norms)]


def head_terms(
    slot: Slot, records: Mapping[Location, Tensor], call: int, places: Sequence[int], width: int
) -> list[Tensor]:
    """Return what each head adds to the stream of ``width`` features at n positions, H tensors (B, n, width), from
    values at ``head_points``; nothing if the output of the branch is not a linear map of the outputs of its heads.
    """
    name, ending = str(slot.name), slot.body.ending()
    z = records.get(Location(call, name, "head_outputs"))
    output = records.get(Location(call, name, "output"))
    if z is None or output is None or (len(z), z.shape[2]) != output.shape[:2]:
        return []
    maps = through_heads(ending, z[:, :, list(places)])
    if not maps:
        return []
    heads, zero = [slot.factor * each for each in maps[:-1]], slot.factor * maps[-1]
    output = output[:, list(places)]
    bound = _ROUNDING if isinstance(ending, QuantizedLinear) else _TOLERANCE
    if (sum(heads) + zero - output).abs().max() > bound * output.abs().max():
        return []
    norm = _norm_after(slot)
    if norm is not None:
        scale = records.get(Location(call, str(norm.name), "scale"))
        heads = linear_part(norm, heads, None if scale is None else scale[:, list(places)])
    none = heads[0].new_zeros(*heads[0].shape[:2], width)
    return [slot.residual.joined(none, each) for each in heads]


def through_heads(ending: Any, z: Tensor) -> list[Tensor]:
    """Return the output projection of each head's outputs z (B, H, n, Dv) alone, without bias, H tensors (B, n, D), and
    the bias at last; nothing if it reads another number of features.
    """
    rows, heads, count, width = z.shape
    if getattr(ending, "in_features", None) != heads * width:
        return []
    zero = ending(z.new_zeros(rows, count, heads * width))
    terms = []
    for head in range(heads):
        joined = z.new_zeros(rows, count, heads, width)
        joined[:, :, head] = z[:, head]
        terms.append(ending(joined.flatten(2)) - zero)
    return [*terms, zero]


def linear_part(norm: Norm, terms: Sequence[Tensor], scale: Tensor | None) -> list[Tensor]:
    """Return norm(term) - norm(0) of terms (B, n, D), with the scale (B, n, 1) of other vectors; None for norms without
    a scale.
    """
    many = torch.stack([*terms, torch.zeros_like(terms[0])])
    point = f"{norm.name}.scale"
    tap = None if scale is None else replace(point, scale.repeat(len(many), 1, 1))
    context = Context(torch.zeros(1, many.shape[2], dtype=torch.long, device=many.device), tap=tap)
    *normed, zero = norm(many.flatten(0, 1), context).unflatten(0, many.shape[:2])
    return [each - zero for each in normed]


def _norm_after(slot: Slot) -> Norm | None:
    """Return the norm between the output of the branch and the stream, if there is one."""
    after = getattr(slot, "norm_after", None)
    return getattr(slot, "norm", None) if after is None and slot.norms_output else after
