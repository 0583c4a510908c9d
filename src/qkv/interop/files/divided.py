"""Stored tensors divided by rows into pieces, as a ``RowDivision`` describes; a piece is read when it is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.interop.files.folder import Stored
from qkv.interop.mapping.divisions import RowDivision, division_of


class StoredRows(NamedTuple):
    """Piece of a stored tensor. To read the piece, the whole tensor is read."""

    whole: Stored
    division: RowDivision
    name: str

    @property
    def dtype(self) -> torch.dtype:
        """torch dtype in which the tensor is stored."""
        return self.whole.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the piece."""
        groups = self.whole.shape[0] // sum(self.division.sizes.values())
        return (groups * self.division.sizes[self.name], *self.whole.shape[1:])

    @property
    def numbers(self) -> int:
        """Number of elements of the piece."""
        return math.prod(self.shape)

    def read(self) -> Tensor:
        """Read the piece from its file into new memory."""
        return self.division.cut(self.whole.read(), self.name).clone()

    def read_into(self, out: Tensor) -> None:
        """Read the piece from its file into ``out``."""
        out.copy_(self.division.cut(self.whole.read(), self.name))


def divide_rows(stored: Mapping[str, Stored], several: Sequence[RowDivision]) -> dict[str, Stored]:
    """Replace each tensor that has a division by its pieces, named ``name[piece]``.

    A tensor whose number of rows is not a multiple of the rows per group is not divided.
    """
    tensors = dict[str, Stored]()
    for name, tensor in stored.items():
        division = division_of(name, several)
        if division is None or not tensor.shape or tensor.shape[0] % sum(division.sizes.values()):
            tensors[name] = tensor
        else:
            tensors |= {f"{name}[{piece}]": StoredRows(tensor, division, piece) for piece in division.sizes}
    return tensors
