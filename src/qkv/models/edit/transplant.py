"""Transfer of weights between models that differ in some branches.

Tensors of equal path and shape are copied. If the rows of a matrix are pieces such as queries, keys and values, and
their sizes differ, each piece is transferred separately: fewer K/V heads are means of groups of old heads, more heads
are copies of old heads (Ainslie et al. 2023). Embedding tables of different lengths share their first rows; tables of
positions on a grid are resampled. All other tensors keep the new model's initialisation. Modules declare their pieces
and tables (``qkv.layers.layout``).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv.layers.layout import Layout, Piece, layouts
from qkv.layers.positions import regridded
from qkv.ops.at_least_single import at_least_single

_LAYER = re.compile(r"(?<=blocks\.)\d+")
KEPT, NEW = "kept", "initialised at random"


class Transferred(NamedTuple):
    """Record of the transfer of one tensor to the new model.

    path: name of the tensor.   how: description of the transfer.   numbers: number of elements.   taken: number of
    elements that come from the old model.
    """

    path: str
    how: str
    numbers: int
    taken: int


def transplant(old: nn.Module, new: nn.Module) -> list[Transferred]:
    """Copy the weights of ``old`` into ``new`` where they fit, in place; return one record per tensor."""
    theirs, before, after = old.state_dict(), layouts(old), layouts(new)
    records, seen = [], set[int]()
    for name, tensor in new.state_dict(keep_vars=True).items():
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        records.append(_take(name, tensor, theirs.get(name), (before.get(name), after[name])))
    return records


def in_words(moved: list[Transferred]) -> list[tuple[str, str]]:
    """Format records as (path, description) pairs in the model's order.

    Layers with equal entries are merged to ``blocks.*`` (all layers) or ``blocks.{0,2}``.
    """
    layers: dict[tuple[str, str], list[str]] = {}
    every: dict[str, set[str]] = {}  # layers of each stack, by path prefix
    for one in moved:
        match = _LAYER.search(one.path)
        layer = match[0] if match else ""
        layers.setdefault((_LAYER.sub("*", one.path, count=1), one.how), []).append(layer)
        every.setdefault(one.path[: match.start()] if match else "", set()).add(layer)
    return [(_named(path, indices, every), how) for (path, how), indices in layers.items()]


def _named(path: str, indices: list[str], every: dict[str, set[str]]) -> str:
    stack, star, _ = path.partition("*")
    return path if not star or len(indices) == len(every[stack]) else path.replace("*", _some(indices), 1)


def _some(layers: list[str]) -> str:
    return layers[0] if len(layers) == 1 else "{" + ",".join(layers) + "}"


@torch.no_grad()
def _take(name: str, target: Tensor, source: Tensor | None, stored: tuple[Layout | None, Layout]) -> Transferred:
    size, (before, after) = target.numel(), stored
    if source is None or target.shape[1:] != source.shape[1:] or target.dim() != source.dim():
        return Transferred(name, NEW, size, 0)
    if before and before.out != after.out and _names(before) == _names(after):
        return _by_piece(name, target, source, before.out, after.out)
    if before and before.sizes != after.sizes:
        moved = regridded(source, before, after)
        if moved is None:
            return Transferred(name, NEW, size, 0)
        target.copy_(moved)
        return Transferred(name, "resampled to another grid", size, size)
    if target.shape == source.shape:
        target.copy_(source)
        return Transferred(name, KEPT, size, size)
    if after.kind == "rows":
        rows = min(len(target), len(source))
        target[:rows].copy_(source[:rows])
        return Transferred(name, f"{rows:,} of {len(target):,} rows kept", size, target[:rows].numel())
    return Transferred(name, NEW, size, 0)


def _names(layout: Layout) -> set[str]:
    return {piece.name for piece in layout.out}


def _by_piece(
    name: str, target: Tensor, source: Tensor, before: tuple[Piece, ...], after: tuple[Piece, ...]
) -> Transferred:
    """Transfer each piece of a tensor, such as the queries, from the piece of the same name in the old tensor.

    own, source: the new and the old tensor.   before, after: pieces of the old and of the new tensor.
    """
    ways: dict[str, list[str]] = {}
    count = 0
    there = {
        piece.name: (piece, rows) for piece, rows in zip(before, source.split([p.size for p in before]), strict=True)
    }
    for piece, mine in zip(after, target.split([p.size for p in after]), strict=True):
        was, theirs = there[piece.name]
        tensor, how = _regrouped(mine, theirs, was.head, piece.head)
        ways.setdefault(how, []).append(piece.name)
        if tensor is not None:
            mine.copy_(tensor)
            count += mine.numel()
    if list(ways) == [NEW]:
        return Transferred(name, NEW, target.numel(), 0)
    return Transferred(
        name, "; ".join(f"{', '.join(letters)}: {how}" for how, letters in ways.items()), target.numel(), count
    )


def _regrouped(target: Tensor, source: Tensor, was: int | None, width: int | None) -> tuple[Tensor | None, str]:
    """Convert ``source`` to the number of heads of ``target``; return (tensor, description), or (None, reason) if
    impossible.

    was, width: features per head of ``source`` and of ``target``; None without heads.
    """
    if target.shape == source.shape:
        return source, KEPT if was == width else f"{KEPT}, split into heads of {width} features instead of {was}"
    if width is None or was != width:
        return None, NEW
    heads, heads_needed = len(source) // width, len(target) // width
    if heads % heads_needed == 0:
        each = at_least_single(source.unflatten(0, (heads_needed, heads // heads_needed, width))).mean(1)
        return each.flatten(0, 1).to(target), f"means of {heads // heads_needed} heads"
    if heads_needed % heads == 0:
        each = source.unflatten(0, (heads, width)).repeat_interleave(heads_needed // heads, 0)
        return each.flatten(0, 1), f"each head copied {heads_needed // heads} times"
    return None, NEW
