"""Published tensors whose rows belong to several tensors of qkv, such as queries and the output gate of attention."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.interop.mapping.names import expression


class RowDivision(NamedTuple):
    """Division of the rows of published tensors: groups of ``sum(sizes)`` rows, each with some rows of every piece.

    theirs: pattern of names, as in ``NameRule``. sizes: rows per group of each piece, by name. Name tables refer to a
    piece as ``name[piece]``.
    """

    theirs: str
    sizes: Mapping[str, int]

    def cut(self, tensor: Tensor, piece: str) -> Tensor:
        """Return the rows of ``piece``, from all groups of the whole ``tensor``."""
        names = list(self.sizes)
        groups = tensor.unflatten(0, (-1, sum(self.sizes.values())))
        return groups.split(list(self.sizes.values()), 1)[names.index(piece)].flatten(0, 1)

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Return the whole tensor of its pieces by name, the inverse of ``cut``."""
        groups = [parts[name].unflatten(0, (-1, size)) for name, size in self.sizes.items()]
        return torch.cat(groups, 1).flatten(0, 1)


def join_rows(tensors: Mapping[str, Tensor], several: Sequence[RowDivision]) -> dict[str, Tensor]:
    """Join the pieces of each published tensor; other tensors are unchanged."""
    joined, parts = dict[str, Tensor](), dict[str, dict[str, Tensor]]()
    for name, tensor in tensors.items():
        whole, bracket, piece = name.partition("[")
        if bracket and division_of(whole, several) is not None:
            parts.setdefault(whole, {})[piece.removesuffix("]")] = tensor
        else:
            joined[name] = tensor
    for whole, named in parts.items():
        division = division_of(whole, several)
        assert division is not None
        joined[whole] = division.join(named)
    return joined


def division_of(name: str, several: Sequence[RowDivision]) -> RowDivision | None:
    """Return the division of the tensor ``name``, or None. Files of a body alone lack the prefix in the pattern."""
    return next((each for each in several if re.fullmatch(expression(each.theirs), name)), None)
