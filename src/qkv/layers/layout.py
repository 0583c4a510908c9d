"""Layouts of weights: the pieces into which their axes are divided, such as queries, keys and values.

Each module declares the layouts of its weights. Adapters, optimisers, the transfer of weights between models and the
tables of published tensors read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, NamedTuple

from torch import Tensor, nn

from qkv.system.errors import UserError


class Piece(NamedTuple):
    """Consecutive features of an axis, such as all queries. ``head``: features per head; None if not split in heads."""

    name: str
    size: int
    head: int | None = None

    @property
    def heads(self) -> int:
        """Number of heads of the piece; 1 if it is not split into heads."""
        return self.size // self.head if self.head else 1


@dataclass(frozen=True)
class Layout:
    """Kind of a weight, and the pieces that its axes consist of.

    kind: ``matrix``: a linear map, stored as (out, in).   ``rows``: a row per token, position or type; a transfer to a
    table of another length copies the first rows.   ``grid``: a row per position of a grid of ``sizes`` in row-major
    order, after ``leading`` other rows; a transfer to another grid resamples the table.   ``whole``: anything else.
    out: pieces of the first axis.   into: pieces of the last axis.   Empty: a single piece.
    """

    kind: Literal["matrix", "rows", "grid", "whole"]
    out: tuple[Piece, ...] = ()
    into: tuple[Piece, ...] = ()
    sizes: tuple[int, ...] = ()
    leading: int = 0


MATRIX, ROWS, WHOLE = Layout("matrix"), Layout("rows"), Layout("whole")


def matrix(**out: tuple[int, int] | int) -> Layout:
    """Return the layout of a matrix whose rows consist of named pieces: ``size``, or ``(size, features per head)``."""
    pieces = ((name, (size, None) if isinstance(size, int) else size) for name, size in out.items())
    return Layout("matrix", tuple(Piece(name, *sizes) for name, sizes in pieces))


def from_heads(size: int, head: int) -> Layout:
    """Return the layout of an output projection, whose ``size`` input features are heads of ``head`` features."""
    return Layout("matrix", into=(Piece("heads", size, head),))


def on_grid(sizes: tuple[int, ...], leading: int) -> Layout:
    """Return the layout of a table with a row per position of a grid, after ``leading`` other rows."""
    return Layout("grid", sizes=tuple(sizes), leading=leading)


def vector(name: str, size: int, head: int) -> Layout:
    """Return the layout of a vector of ``size`` features, ``head`` features per head, such as a bias per head."""
    return Layout("whole", (Piece(name, size, head),))


Layouts = Mapping[str, Layout]
"""Layouts by the path of a parameter, or of a module.

The layout of a module describes its ``weight``; its ``bias`` has the pieces of the weight's first axis.
"""


class Declared(nn.Module):
    """Base class of modules that declare the layouts of their weights."""

    def layouts(self) -> Layouts:
        """Return the layouts of weights by their path below this module; other weights have a default layout.

        Defaults: ``rows`` for torch's embeddings, ``matrix`` for other two-dimensional tensors, ``whole`` for all other
        tensors.
        """
        return {}


class LookupTable(Declared):
    """Module whose direct parameters are lookup tables with a fixed index (a distance, a relation), not matrices."""

    def layouts(self) -> Layouts:
        return {name: WHOLE for name, _ in self.named_parameters(recurse=False)}


def layouts(model: nn.Module) -> dict[str, Layout]:
    """Return the layout of each tensor of ``model``, by its name in the state dict.

    The declaration of an outer module overrides the declaration of an inner module. Raises ``UserError`` if a
    declaration names a weight that the module does not have, or does not fit the tensor's shape.
    """
    declarations: dict[str, Layout] = {}
    for path, module in model.named_modules():
        if isinstance(module, Declared):
            for name, layout in module.layouts().items():
                _check_name(module, name)
                declarations.setdefault(f"{path}.{name}" if path else name, layout)
    tensors = model.state_dict(keep_vars=True)
    result = {name: _layout(model, name, tensor, declarations) for name, tensor in tensors.items()}
    for name, layout in result.items():
        _check(name, layout, tensors[name])
    return result


def _layout(model: nn.Module, name: str, tensor: Tensor, declarations: Layouts) -> Layout:
    owner, _, leaf = name.rpartition(".")
    if name in declarations:
        return declarations[name]
    if owner in declarations and leaf == "weight":
        return declarations[owner]
    if owner in declarations and leaf == "bias":
        return replace(WHOLE, out=declarations[owner].out)
    if isinstance(model.get_submodule(owner), (nn.Embedding, nn.EmbeddingBag)):
        return ROWS
    return MATRIX if tensor.dim() == 2 else WHOLE


def _check_name(module: nn.Module, name: str) -> None:
    """Raise ``UserError`` unless ``module`` has the weight ``name``; an optional submodule may be None."""
    part: object = module
    for step in name.split("."):
        if part is not None and not hasattr(part, step):
            raise UserError(f"{type(module).__name__} declares the layout of {name!r}, but has no such weight")
        part = getattr(part, step, None)


def _check(name: str, layout: Layout, tensor: Tensor) -> None:
    if layout.kind == "matrix" and tensor.dim() != 2:
        raise UserError(
            f"{name}: declared as a matrix, but it has the shape {list(tensor.shape)}; declare it as whole or as rows"
        )
    if layout.kind == "grid" and tensor.shape[0] != layout.leading + prod(layout.sizes):
        grid = " × ".join(map(str, layout.sizes))
        raise UserError(
            f"{name}: declared as {layout.leading} rows and a grid of {grid}, but the shape is {list(tensor.shape)}"
        )
    for pieces, axis in ((layout.out, 0), (layout.into, -1)):
        total = sum(piece.size for piece in pieces)
        if pieces and (not tensor.dim() or total != tensor.shape[axis]):
            names = ", ".join(piece.name for piece in pieces)
            raise UserError(
                f"{name}: the pieces {names} have {total} features in all, but the shape is {list(tensor.shape)}"
            )
        uneven = next((piece for piece in pieces if piece.head and piece.size % piece.head), None)
        if uneven:
            raise UserError(
                f"{name}: {uneven.size} features of {uneven.name} are not a multiple of the {uneven.head} per head"
            )
