"""Location of a tensor, by its name in qkv or a published name: path in the spec, module, source line."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import Plain
from qkv.interop.mapping.family import Family, read_spec, without_prefix
from qkv.interop.mapping.names import Match, expression, matches
from qkv.interop.registry import families
from qkv.models.transformer import Transformer
from qkv.system.errors import UserError, nearest

_MOST_LAYERS = 200
"""Maximum number of layers of an example model."""


class Place(NamedTuple):
    """Location of a tensor.

    It consists of names in qkv and in published files, conversion (``way``), shape, path in the spec, module class and
    source line.
    """

    ours: str
    theirs: tuple[str, ...]
    way: str
    shape: tuple[int, ...]
    spec_path: str
    module: str
    file: Path
    line: int


def where(model: Transformer, name: str, family: Family | None = None, architecture: str = "") -> Place:
    """Locate the tensor ``name`` of ``model``, by its name in qkv or in files of ``family``.

    Raises ``UserError`` that suggests the nearest name.
    """
    place = _find(model, name, family, architecture)
    if place is None:
        table = _table(model, family, architecture)
        names = {*model.state_dict(), *(theirs for match in table.values() for theirs in match.theirs)}
        raise UserError(f"the model has no tensor named {name!r}, in qkv or in published files; {_near(name, names)}")
    return place


def _find(model: Transformer, name: str, family: Family | None, architecture: str) -> Place | None:
    """Locate the tensor ``name`` as ``where`` does; None if the model has none of this name."""
    tensors = model.state_dict(keep_vars=True)
    table = _table(model, family, architecture)
    ours = name if name in tensors else next((match.ours for match in table.values() if name in match.theirs), None)
    if ours is None:
        bare = _table(model, family, architecture, bare=True)
        ours = next((match.ours for match in bare.values() if name in match.theirs), None)
    if ours is None:
        return None
    owner = _owner(model, ours)
    file, line = source_of(owner)
    match = table.get(ours)
    way = "" if match is None or isinstance(match.way, Plain) else type(match.way).__name__.lower()
    theirs = match.theirs if match else ()
    return Place(
        ours, theirs, way, tuple(tensors[ours].shape), spec_path(model, ours), type(owner).__name__, file, line
    )


def everywhere(name: str) -> list[tuple[str, Place]]:
    """Return (family, location) of the tensor with the published name ``name``, for each family that has it.

    Needs no checkpoint; sizes are examples. Raises ``UserError`` if no family has it.
    """
    layers = max((int(number) for number in re.findall(r"\d+", name)), default=0) + 1
    places = list[tuple[str, Place]]()
    for family in families():
        for architecture in family.architectures:
            if not any(re.fullmatch(expression(pattern), name) for pattern in _published(family, architecture)):
                continue  # building a model takes longer than reading a table
            with contextlib.suppress(UserError):
                place = _find(sketch(family, architecture, layers), name, family, architecture)
                if place is not None:
                    places.append((family.name, place))
                    break
    if not places:
        raise UserError(f"no published family has a tensor {name!r}; {_near(name, _names_like(name))}")
    return places


def _published(family: Family, architecture: str) -> Iterator[str]:
    """Yield the patterns of the published names of an architecture, with and without the prefix of its body."""
    rows = family.rows(architecture)
    for row in (*rows, *without_prefix(family, rows)):
        yield from row.published


def _names_like(name: str) -> set[str]:
    """Return the published names of all families whose indices are the numbers in ``name``, in their order."""
    numbers = re.findall(r"\d+", name)
    patterns = {p for family in families() for each in family.architectures for p in _published(family, each)}
    names = set[str]()
    for pattern in patterns:
        left = iter(numbers)
        filled = re.sub(r"\{[^}]*\}", lambda _, left=left: next(left, "0"), pattern)
        names |= {filled.replace("*", leaf) for leaf in ("weight", "bias")}
    return names


class _Sketch(Config):
    """Config of an example model, with a value for every key.

    Values are the family's ``typical`` ones, else sizes of 64, two heads, groups of heads or classes, and ``count``
    layers.
    """

    def __init__(self, family: Family, architecture: str, count: int):
        typical = {**family.typical, **family.architectures[architecture].typical}
        super().__init__({"model_type": family.model_types[0], **typical})
        self.count = count

    def layers(self, key: str, default: int | None = None) -> int:
        return self.count

    def size(self, key: str, default: int | None = None) -> int:
        if self.says(key):
            return self.integer(key)
        return 2 if key.startswith(("num", "n_")) and key.endswith(("heads", "head", "groups", "labels")) else 64

    def integer(self, key: str, default: int | None = None) -> int:
        example = 64 if default is None else default
        return super().integer(key, example) if self.says(key) else example


def sketch(family: Family, architecture: str, layers: int) -> Transformer:
    """Build a small example model of the family on the meta device."""
    with torch.device("meta"):
        return Transformer(read_spec(family, architecture, _Sketch(family, architecture, min(layers, _MOST_LAYERS))))


def _table(model: Transformer, family: Family | None, architecture: str, bare: bool = False) -> dict[str, Match]:
    if family is None:
        return {}
    rows = family.rows(architecture)
    return {match.ours: match for match in matches(model, without_prefix(family, rows) if bare else rows)}


def _near(name: str, names: Iterable[str]) -> str:
    clause = nearest(name, names)
    return clause if clause.startswith("did you mean") else "'qkv load' lists none that is close"


def _owner(model: nn.Module, name: str) -> nn.Module:
    """Return the innermost module that contains the tensor and is not one of torch's classes.

    For a linear layer, this is the branch, norm or head that uses it.
    """
    path = name.split(".")[:-1]
    chain = [model.get_submodule(".".join(path[:end])) for end in range(len(path), -1, -1)]
    return next(m for m in chain if not isinstance(m, nn.Linear) and not type(m).__module__.startswith("torch."))


def source_of(module: nn.Module) -> tuple[Path, int]:
    """Return (file, first line) of the source of a module's class."""
    kind = type(module)
    return Path(inspect.getfile(kind)), inspect.getsourcelines(kind)[1]


def spec_path(model: Transformer, name: str) -> str:
    """Return the path in ``model.spec`` of the part that the tensor ``name`` belongs to.

    Blocks that repeat a pattern have the path of the pattern. Example: with a pattern of two blocks,
    ``blocks.5.branches.0.body.qkv.weight`` belongs to ``model.blocks.1.branches.0``.
    """
    stack, prefix, parts = model.spec, "model", name.split(".")
    before = {"encoder": model.spec.encoder, "latents": model.spec.latents}.get(parts[0])
    if before is not None:
        stack, prefix, parts = before, f"model.{parts[0]}", parts[1:]
    if parts[0] == "vectors":  # the latent vectors
        return prefix
    if parts[0] != "blocks":
        return f"{prefix}.{'.'.join(parts[: 1 + (parts[1] == 'positions')])}"
    block = f"{prefix}.blocks.{int(parts[1]) % len(stack.blocks)}"
    if parts[2] == "merge":
        return f"{block}.merge"
    if parts[2] != "branches" or parts[4].startswith("norm"):
        return f"{block}.norm"
    return f"{block}.residual" if parts[4] == "residual" else f"{block}.branches.{parts[3]}"
