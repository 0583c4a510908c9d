"""The weights of one model moved into another that is built alike but for some of its branches.

A tensor of the same path and shape is taken as it is. Where the queries, keys and values of one matrix have other sizes than before, each
of the three is taken alone: K/V heads that become fewer are the means of their groups, and those that become more are repeated (Ainslie et
al. 2023). Of a table of the front end the rows that both have are taken. All else begins as the new model was initialised.
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
KEPT, NEW = "kept", "begins at random"


class Layout(NamedTuple):
    """How the rows of a map to queries, keys and values are cut: rows of each of the three, and features of one head of each."""

    rows: tuple[int, int, int]
    heads: tuple[int, int, int]


class Moved(NamedTuple):
    """What became of a tensor of the new model: ``numbers`` in it, ``taken`` of them from the old one, and how, in words."""

    path: str
    how: str
    numbers: int
    taken: int


def transplant(old: nn.Module, new: nn.Module) -> list[Moved]:
    """Fill ``new`` with what it can take of ``old``, and say of each of its tensors how; one that has several names counts once."""
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
    """(path, how) in the model's order; what is alike in all layers, or in some, stands there once: ``blocks.*``, ``blocks.{0,2}``."""
    layers: dict[tuple[str, str], list[str]] = {}
    every: dict[str, set[str]] = {}  # of each stack, by what stands before its layers
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
    """The path and layout of every map named ``qkv``; thirds where its branch says no sizes."""
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
    """Queries, keys and values each alone."""
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
    """``given`` with as many heads as ``own`` has, and how they were made; None where one cannot be made of the other."""
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
