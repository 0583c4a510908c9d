"""Hand-written weights: values for pieces of weight tensors, looked up by name in the layouts that modules declare."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from qkv.layers.layout import Layout, Piece, layouts
from qkv.models.transformer import Transformer
from qkv.spec.models.start import ConstructedStart, Values, WeightPiece
from qkv.system.errors import UserError, nearest

_SUFFIX = ".weight"


@torch.no_grad()
def construct(model: Transformer, start: ConstructedStart) -> None:
    """Write the values of ``start.pieces`` into the weights of ``model``, in place.

    Raises ``UserError`` if the model has no such piece, or if the values do not have the shape of the piece.
    """
    tensors, stored = model.state_dict(keep_vars=True), layouts(model)
    if start.rest == "zero":
        for name, tensor in tensors.items():
            if stored[name].kind in ("matrix", "rows", "grid") or name.endswith(".bias"):
                tensor.zero_()
    for number, piece in enumerate(start.pieces):
        place = f"start.pieces.{number}"
        name = _weight(piece, stored, place)
        _write(_view(tensors[name], stored[name], piece, f"{place}: {name}"), piece.values, f"{place}: {name}")


def _weight(piece: WeightPiece, stored: dict[str, Layout], place: str) -> str:
    """Return the state-dict name of the tensor that contains ``piece``."""
    if piece.layer is None:
        prefix, candidates = "", list(stored)
    else:
        prefix = f"blocks.{piece.layer}.branches.{piece.branch}.body."
        candidates = [name for name in stored if name.startswith(prefix)]
        if not candidates:
            blocks = 1 + max((int(name.split(".")[1]) for name in stored if name.startswith("blocks.")), default=-1)
            where = f"layer {piece.layer} has no branch {piece.branch} with weights"
            raise UserError(f"{place}: {where}; the model has {blocks} layers")
    if piece.weight:
        target = prefix + piece.weight
        match = next((name for name in (target, target + _SUFFIX) if name in stored), None)
        if match is None:
            raise UserError(f"{place}: the model has no weight {target!r}; {nearest(target, candidates)}")
        return match
    holders = [name for name in candidates if any(each.name == piece.piece for each in _pieces(stored[name]))]
    matrices = [name for name in holders if name.endswith(_SUFFIX)] or holders
    if len(matrices) != 1:
        names = sorted({each.name for name in candidates for each in _pieces(stored[name])})
        problem = f"has {len(matrices)} weights with a piece {piece.piece!r}" if matrices else f"has no {piece.piece!r}"
        raise UserError(f"{place}: branch {piece.branch} of layer {piece.layer} {problem}; pieces: {', '.join(names)}")
    return matrices[0]


def _pieces(layout: Layout) -> Iterator[Piece]:
    yield from layout.out
    yield from layout.into


def _view(tensor: Tensor, layout: Layout, piece: WeightPiece, place: str) -> Tensor:
    """Return a view of the part of ``tensor`` that ``piece`` names: all of it, a piece, or one head of a piece."""
    if not piece.piece:
        return tensor
    for axis, pieces in ((0, layout.out), (-1, layout.into)):
        begin = 0
        for each in pieces:
            if each.name == piece.piece:
                return _of_head(tensor.narrow(axis, begin, each.size), axis, each, piece.head, place)
            begin += each.size
    names = [each.name for each in _pieces(layout)]
    hint = nearest(piece.piece, names) if names else "it is not divided"
    raise UserError(f"{place} has no piece {piece.piece!r}; {hint}")


def _of_head(part: Tensor, axis: int, piece: Piece, head: int | None, place: str) -> Tensor:
    if head is None:
        return part
    if piece.head is None:
        raise UserError(f"{place}: the piece {piece.name!r} is not divided into heads")
    if head >= piece.heads:
        raise UserError(f"{place}: head {head} of {piece.name!r} is given; allowed: 0 to {piece.heads - 1}")
    return part.narrow(axis, head * piece.head, piece.head)


def _write(part: Tensor, values: Values, place: str) -> None:
    """Write ``values`` into ``part``, a view of a weight."""
    if values == "identity":
        if part.dim() != 2:
            raise UserError(f"{place} has the shape {list(part.shape)}, and only a matrix can be an identity")
        part.copy_(torch.eye(*part.shape, dtype=part.dtype, device=part.device))
        return
    try:
        tensor = torch.tensor(values, dtype=part.dtype, device=part.device)
    except ValueError:
        raise UserError(f"{place}: the values have rows of different lengths") from None
    if tensor.dim() and tensor.shape != part.shape:
        raise UserError(f"{place}: the values have the shape {list(tensor.shape)}, the weight has {list(part.shape)}")
    part.copy_(tensor.expand(part.shape))
