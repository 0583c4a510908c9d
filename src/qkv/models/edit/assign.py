"""Assignment of tensors to parameters and buffers of a module on the meta device."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

Place = tuple[nn.Module, str]


def places_of(model: nn.Module) -> dict[str, list[Place]]:
    """Map each name of the state dict to the (module, attribute) pairs that hold its tensor; several if it is tied."""
    by_tensor: dict[int, list[Place]] = {}
    names = model.state_dict(keep_vars=True)
    for name, tensor in names.items():
        owner, _, leaf = name.rpartition(".")
        by_tensor.setdefault(id(tensor), []).append((model.get_submodule(owner), leaf))
    return {name: by_tensor[id(tensor)] for name, tensor in names.items()}


def place(places: Sequence[Place], tensor: Tensor) -> None:
    """Assign ``tensor`` to all of ``places``; if it replaces a parameter, ``requires_grad`` is preserved."""
    owner, leaf = places[0]
    before = owner._parameters.get(leaf)
    value = tensor if before is None else nn.Parameter(tensor, before.requires_grad)
    for owner, leaf in places:
        setattr(owner, leaf, value)
