"""Quantising the weights of a model in place, by the layers that hold them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from qkv.frontends.text import TextFrontend
from qkv.layers.linear import Linear
from qkv.layers.quantized import QuantizedLinear, QuantizedTable
from qkv.models.heads import LanguageModelHead
from qkv.models.placing import Place, places_of
from qkv.spec.errors import UserError
from qkv.spec.quantization import Quantization

_TABLES = ((TextFrontend, "table"), (LanguageModelHead, "weight"))
"""Modules, and their attributes, that can hold a quantised matrix besides linear layers."""
_PLAIN = (Linear, nn.Linear)
"""Linear layers that are replaced; their subclasses use their weights in ways of their own."""
_LEAST = 8
"""Fewest bits of a table: an error in an embedding, or in the output matrix, is not averaged over other layers."""


def quantize(model: nn.Module, part: Quantization) -> None:
    """Replace the linear layers, embedding tables and output matrices of ``model`` by quantised ones, in place.

    A tied output matrix stays the embedding table: both read the same bytes. Weights that modules of other kinds use,
    such as those of convolutions and experts, stay as they are. Raises ``UserError`` for weights that are not finite.
    """
    for name, places in places_of(model).items():
        owner, leaf = places[0]
        weight = getattr(owner, leaf)
        if isinstance(weight, QuantizedTable):  # the other name of a tied matrix
            continue
        if all(_holds_table(place) for place in places):
            _check(name, weight)
            _place(places, QuantizedTable(weight, max(part.bits, _LEAST), 0))
        elif leaf == "weight" and isinstance(owner, nn.Linear) and type(owner) in _PLAIN and len(places) == 1:
            _check(name, weight)
            model.set_submodule(name.rpartition(".")[0], QuantizedLinear(owner, part.bits, part.size))


def _holds_table(place: Place) -> bool:
    return any(isinstance(place[0], kind) and place[1] == leaf for kind, leaf in _TABLES)


def _place(places: Sequence[Place], table: QuantizedTable) -> None:
    for owner, leaf in places:
        owner._parameters.pop(leaf, None)
        setattr(owner, leaf, table)


def _check(name: str, weight: Tensor) -> None:
    if not weight.is_meta and not bool(torch.isfinite(weight).all()):
        raise UserError(f"{name} has weights that are not finite numbers, which cannot be quantised")
