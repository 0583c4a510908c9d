"""Tensors put into a module that has no memory behind it, in the place of its own."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

Place = tuple[nn.Module, str]


def places_of(model: nn.Module) -> dict[str, list[Place]]:
    """Every place of each tensor, by each of its names: those of a shared one are the same."""
    by_tensor: dict[int, list[Place]] = {}
    names = model.state_dict(keep_vars=True)
    for name, tensor in names.items():
        owner, _, leaf = name.rpartition(".")
        by_tensor.setdefault(id(tensor), []).append((model.get_submodule(owner), leaf))
    return {name: by_tensor[id(tensor)] for name, tensor in names.items()}


def place(places: Sequence[Place], tensor: Tensor) -> None:
    """Put ``tensor`` into all of ``places``; a parameter learns if the one that stood there did."""
    owner, leaf = places[0]
    before = owner._parameters.get(leaf)
    value = tensor if before is None else nn.Parameter(tensor, before.requires_grad)
    for owner, leaf in places:
        setattr(owner, leaf, value)
