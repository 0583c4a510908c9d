"""Slices of published tensors along their first axis, such as one expert's weights in a tensor of all experts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.interop.files.folder import Stored
from qkv.interop.files.safetensors_file import Entry
from qkv.interop.mapping.names import split_slice


class Slice(NamedTuple):
    """Slice of a stored tensor. To read the slice, the whole tensor is read."""

    whole: Stored
    index: int

    @property
    def dtype(self) -> torch.dtype:
        """torch dtype in which the tensor is stored."""
        return self.whole.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the slice."""
        return self.whole.shape[1:]

    @property
    def numbers(self) -> int:
        """Number of elements of the slice."""
        return math.prod(self.shape)

    def read(self) -> Tensor:
        """Read the slice from its file into new memory."""
        return self.whole.read()[self.index].clone()

    def read_into(self, out: Tensor) -> None:
        """Read the slice from its file into ``out``."""
        out.copy_(self.whole.read()[self.index])


def with_slices(stored: Mapping[str, Stored], names: Iterable[str]) -> dict[str, Stored]:
    """Replace each tensor that ``names`` contain slices of by all of its slices, named ``name[0]`` and so on."""
    sliced = {whole for name in names for whole, index in (split_slice(name),) if index is not None}
    tensors = {name: tensor for name, tensor in stored.items() if name not in sliced}
    for name in sliced & stored.keys():
        whole = stored[name]
        tensors |= {f"{name}[{i}]": slice_of(whole, i) for i in range(whole.shape[0] if whole.shape else 0)}
    return tensors


def slice_of(whole: Stored, index: int) -> Stored:
    """Return slice ``index`` of a stored tensor, without reading it.

    A tensor that can be read in slices, such as a quantised stack of experts, has a method ``at``.
    """
    if not isinstance(whole, Entry):
        at = getattr(whole, "at", None)
        return Slice(whole, index) if at is None else at(index)
    shape = whole.shape[1:]
    return whole._replace(begin=whole.begin + index * math.prod(shape) * whole.dtype.itemsize, shape=shape)


def join_slices(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stack the slices of each published tensor to the whole tensor; other tensors are unchanged."""
    joined, slices = dict[str, Tensor](), dict[str, dict[int, Tensor]]()
    for name, tensor in tensors.items():
        whole, index = split_slice(name)
        if index is None:
            joined[name] = tensor
        else:
            slices.setdefault(whole, {})[index] = tensor
    return joined | {whole: torch.stack([parts[i] for i in range(len(parts))]) for whole, parts in slices.items()}
