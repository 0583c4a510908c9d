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
    found, seen = [], set[int]()
    for name, own in new.state_dict(keep_vars=True).items():
        if id(own) in seen:
            continue
        seen.add(id(own))
        found.append(_take(name, own, theirs.get(name), (before.get(name), after[name])))
    return found


def in_words(moved: list[Transferred]) -> list[tuple[str, str]]:
    """Format records as (path, description) pairs in the model's order.

    Layers with equal entries are merged to ``blocks.*`` (all layers) or ``blocks.{0,2}``.
    """
    layers: dict[tuple[str, str], list[str]] = {}
    every: dict[str, set[str]] = {}  # layers of each stack, by path prefix
    for one in moved:
        found = _LAYER.search(one.path)
        layer = found[0] if found else ""
        layers.setdefault((_LAYER.sub("*", one.path, count=1), one.how), []).append(layer)
        every.setdefault(one.path[: found.start()] if found else "", set()).add(layer)
    return [(_named(path, known, every), how) for (path, how), known in layers.items()]


def _named(path: str, known: list[str], every: dict[str, set[str]]) -> str:
    stack, star, _ = path.partition("*")
    return path if not star or len(known) == len(every[stack]) else path.replace("*", _some(known), 1)


def _some(layers: list[str]) -> str:
    return layers[0] if len(layers) == 1 else "{" + ",".join(layers) + "}"


@torch.no_grad()
def _take(name: str, own: Tensor, given: Tensor | None, stored: tuple[Layout | None, Layout]) -> Transferred:
    size, (before, after) = own.numel(), stored
    if given is None or own.shape[1:] != given.shape[1:] or own.dim() != given.dim():
        return Transferred(name, NEW, size, 0)
    if before and before.out != after.out and _names(before) == _names(after):
        return _by_piece(name, own, given, before.out, after.out)
    if before and before.sizes != after.sizes:
        moved = regridded(given, before, after)
        if moved is None:
            return Transferred(name, NEW, size, 0)
        own.copy_(moved)
        return Transferred(name, "resampled to another grid", size, size)
    if own.shape == given.shape:
        own.copy_(given)
        return Transferred(name, KEPT, size, size)
    if after.kind == "rows":
        rows = min(len(own), len(given))
        own[:rows].copy_(given[:rows])
        return Transferred(name, f"{rows:,} of {len(own):,} rows kept", size, own[:rows].numel())
    return Transferred(name, NEW, size, 0)


def _names(layout: Layout) -> set[str]:
    return {piece.name for piece in layout.out}


def _by_piece(
    name: str, own: Tensor, given: Tensor, before: tuple[Piece, ...], after: tuple[Piece, ...]
) -> Transferred:
    """Transfer each piece of a tensor, such as the queries, from the piece of the same name in the old tensor.

    own, given: the new and the old tensor.   before, after: pieces of the old and of the new tensor.
    """
    ways: dict[str, list[str]] = {}
    taken = 0
    there = {
        piece.name: (piece, rows) for piece, rows in zip(before, given.split([p.size for p in before]), strict=True)
    }
    for piece, mine in zip(after, own.split([p.size for p in after]), strict=True):
        was, theirs = there[piece.name]
        made, how = _regrouped(mine, theirs, was.head, piece.head)
        ways.setdefault(how, []).append(piece.name)
        if made is not None:
            mine.copy_(made)
            taken += mine.numel()
    if list(ways) == [NEW]:
        return Transferred(name, NEW, own.numel(), 0)
    return Transferred(
        name, "; ".join(f"{', '.join(letters)}: {how}" for how, letters in ways.items()), own.numel(), taken
    )


def _regrouped(own: Tensor, given: Tensor, was: int | None, width: int | None) -> tuple[Tensor | None, str]:
    """Convert ``given`` to the number of heads of ``own``; return (tensor, description), or (None, reason) if
    impossible.

    was, width: features per head of ``given`` and of ``own``; None without heads.
    """
    if own.shape == given.shape:
        return given, KEPT if was == width else f"{KEPT}, split into heads of {width} features instead of {was}"
    if width is None or was != width:
        return None, NEW
    heads, wanted = len(given) // width, len(own) // width
    if heads % wanted == 0:
        each = at_least_single(given.unflatten(0, (wanted, heads // wanted, width))).mean(1)
        return each.flatten(0, 1).to(own), f"means of {heads // wanted} heads"
    if wanted % heads == 0:
        each = given.unflatten(0, (heads, width)).repeat_interleave(wanted // heads, 0)
        return each.flatten(0, 1), f"each head copied {wanted // heads} times"
    return None, NEW
