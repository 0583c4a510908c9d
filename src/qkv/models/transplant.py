"""Transfer of weights between models that differ in some branches.

Tensors of equal path and shape are copied. If queries, keys and values share one matrix of a different size, each of
the three is transferred separately: fewer K/V heads are means of groups, more are repeated (Ainslie et al. 2023).
Embedding tables share their first rows. All other tensors keep the new model's initialisation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv.ops.at_least_single import at_least_single

_TABLES = ("frontend.", "encoder.frontend.")
_LAYER = re.compile(r"(?<=blocks\.)\d+")
KEPT, NEW = "kept", "initialised at random"


class Layout(NamedTuple):
    """Layout of a combined q, k, v projection: rows of each of the three, and features per head of each."""

    rows: tuple[int, int, int]
    heads: tuple[int, int, int]


class Moved(NamedTuple):
    """Transfer of one tensor of the new model: ``numbers`` in all, ``taken`` from the old model, and a description."""

    path: str
    how: str
    numbers: int
    taken: int


def transplant(old: nn.Module, new: nn.Module) -> list[Moved]:
    """Transfer the weights of ``old`` to ``new``; return a record per tensor (once for shared tensors)."""
    theirs, layouts = old.state_dict(), (dict(_layouts(old)), dict(_layouts(new)))
    found, seen = [], set[int]()
    for name, own in new.state_dict(keep_vars=True).items():
        if id(own) in seen:
            continue
        seen.add(id(own))
        module = name.rpartition(".")[0]
        cuts = layouts[0].get(module), layouts[1].get(module)
        found.append(_take(name, own, theirs.get(name), cuts))
    return found


def in_words(moved: list[Moved]) -> list[tuple[str, str]]:
    """(path, description) in the model's order; equal entries of several layers are merged: ``blocks.*``,
    ``blocks.{0,2}``.
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


def _layouts(model: nn.Module) -> Iterator[tuple[str, Layout]]:
    """(path, layout) of each projection named ``qkv``; thirds if its branch defines no sizes."""
    for path, module in model.named_modules():
        inner, width = getattr(module, "qkv", None), getattr(module, "head_dim", None)
        if isinstance(inner, nn.Linear) and isinstance(width, int):
            third = inner.out_features // 3
            rows = tuple(getattr(module, "sizes", (third, third, third)))
            values = getattr(module, "value_dim", width)
            yield f"{path}.qkv", Layout((rows[0], rows[1], rows[2]), (width, width, values))


@torch.no_grad()
def _take(name: str, own: Tensor, given: Tensor | None, cuts: tuple[Layout | None, Layout | None]) -> Moved:
    size = own.numel()
    before, after = cuts
    if given is None or own.shape[1:] != given.shape[1:] or own.dim() != given.dim():
        return Moved(name, NEW, size, 0)
    if before and after and before != after:
        return _by_part(name, own, given, before, after)
    if own.shape == given.shape:
        own.copy_(given)
        return Moved(name, KEPT, size, size)
    if name.startswith(_TABLES) and own.dim():
        rows = min(len(own), len(given))
        own[:rows].copy_(given[:rows])
        return Moved(name, f"{rows:,} of {len(own):,} rows kept", size, own[:rows].numel())
    return Moved(name, NEW, size, 0)


def _by_part(name: str, own: Tensor, given: Tensor, before: Layout, after: Layout) -> Moved:
    """Transfer queries, keys and values separately."""
    ways: dict[str, list[str]] = {}
    taken = 0
    parts = zip("qkv", own.split(after.rows), given.split(before.rows), before.heads, after.heads, strict=True)
    for letter, mine, theirs, was, width in parts:
        made, how = _regrouped(mine, theirs, was, width)
        ways.setdefault(how, []).append(letter)
        if made is not None:
            mine.copy_(made)
            taken += mine.numel()
    if list(ways) == [NEW]:
        return Moved(name, NEW, own.numel(), 0)
    return Moved(name, "; ".join(f"{', '.join(letters)}: {how}" for how, letters in ways.items()), own.numel(), taken)


def _regrouped(own: Tensor, given: Tensor, was: int, width: int) -> tuple[Tensor | None, str]:
    """(``given`` with as many heads as ``own``, description); None if the sizes are incompatible."""
    if own.shape == given.shape:
        return given, KEPT if was == width else f"{KEPT}, cut into heads of {width} in the place of {was}"
    if was != width:
        return None, NEW
    heads, wanted = len(given) // width, len(own) // width
    if heads % wanted == 0:
        each = at_least_single(given.unflatten(0, (wanted, heads // wanted, width))).mean(1)
        return each.flatten(0, 1).to(own), f"means of {heads // wanted} heads"
    if wanted % heads == 0:
        each = given.unflatten(0, (heads, width)).repeat_interleave(wanted // heads, 0)
        return each.flatten(0, 1), f"each head {wanted // heads} times"
    return None, NEW
