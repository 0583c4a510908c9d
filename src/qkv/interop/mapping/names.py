"""Tables of tensor names for loading and saving: name in qkv, names in published files, conversion."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from qkv.interop.mapping.conversions import PLAIN, Cut, Way, cut_of
from qkv.layers.layout import layouts
from qkv.spec.model import Model

Reasons = Mapping[str, str]
"""Patterns of names that are ignored, with the reason for each."""
_INDEX = re.compile(r"\{(\w+?)([+-]\d+|//\d+)?\}")
_BRANCH = re.compile(r"blocks\.(\d+)\.branches\.(\d+)\.(body|norm)\.")
_SLICE = re.compile(r"(.*)\[(\d+)\]")


class NameRule(NamedTuple):
    """Row of a name table: name ``ours`` in qkv, names ``theirs`` in published files, and the conversion ``way``
    between them.

    Patterns have named indices, ``{layer}`` and ``{expert}``, and ``*`` for ``weight`` or ``bias``, the same on both
    sides; ``theirs`` may use ``{layer-1}``, ``{layer//2}`` if two blocks of qkv are one published layer, and
    ``{stage}`` and ``{block}``: the stage of a layer, which begins with a merge, and the layer's number in it;
    ``{last}`` is the last stage. A name that ends in ``[{expert}]`` is a slice along the first axis of a published
    tensor of all experts. A row applies to every tensor of the model whose name matches ``ours``; the first row that
    applies is used. ``way``: the conversion, or a function of the spec that returns it. ``where``: condition on the
    spec for the row, for families with two names of one tensor. ``of``: kind of branch that the row is for, for
    families whose layers have different branches; for a norm, kind of the first branch of its block.
    """

    ours: str
    theirs: str | tuple[str, ...]
    way: Way | Callable[[Model], Way] = PLAIN
    where: Callable[[Model], bool] | None = None
    of: str = ""

    @property
    def published(self) -> tuple[str, ...]:
        """Patterns of the published names, as a tuple."""
        return (self.theirs,) if isinstance(self.theirs, str) else self.theirs

    def without(self, prefix: str) -> NameRule:
        """Return the row with ``prefix`` removed from the published names."""
        return self._replace(theirs=tuple(name.removeprefix(prefix) for name in self.published))

    def below(self, prefix: str) -> NameRule:
        """Return the row with ``prefix`` added before the published names."""
        return self._replace(theirs=tuple(prefix + name for name in self.published))


@dataclass(frozen=True)
class Match:
    """Names of one tensor of a model in qkv and in a file, and the conversion between them."""

    ours: str
    theirs: tuple[str, ...]
    way: Way
    cut: Cut


def matches(model: nn.Module, rows: Sequence[NameRule]) -> list[Match]:
    """Return the match of each tensor of ``model``, also of every further name of a shared tensor.

    Raises ``LookupError`` if no row of the table applies.
    """
    spec: Any = getattr(model, "spec", None)
    patterns = [(_with_groups(row.ours), row) for row in rows if row.where is None or row.where(spec)]
    pairs, stored = [], layouts(model)
    for name in stored:
        kind = _branch_kind(spec, name)
        hits = (
            (match, row) for pattern, row in patterns if row.of in ("", kind) and (match := pattern.fullmatch(name))
        )
        hit = next(hits, None)
        if hit is None:
            raise LookupError(f"no row of the name table matches {name!r}")
        match, row = hit
        indices = {**_stage_indices(spec, match.groupdict()), **match.groupdict()}
        theirs = tuple(fill_indices(each, indices) for each in row.published)
        way = row.way if isinstance(row.way, Way) else row.way(spec)
        pairs.append(Match(name, theirs, way, cut_of(stored[name])))
    return pairs


def _stage_indices(spec: Any, indices: Mapping[str, str]) -> dict[str, int]:
    """Return ``stage`` and ``block`` of the layer in ``indices``, and ``last``, the last stage of the model."""
    layer, layers = int(indices.get("layer", 0)), getattr(spec, "layers", ())
    if not getattr(spec, "merges", False):
        return {"stage": 0, "block": layer, "last": 0}
    begins = [i for i, block in enumerate(layers) if i == 0 or block.merge is not None]
    stage = sum(first <= layer for first in begins) - 1
    return {"stage": stage, "block": layer - begins[stage], "last": len(begins) - 1}


def _branch_kind(spec: Any, name: str) -> str:
    """Return the kind of the branch that contains the tensor ``name``; "" if it is in no block of the stack itself.

    For a norm before or after a branch, it is the kind of the block's first branch.
    """
    place = _BRANCH.match(name)
    if place is None:
        return ""
    return spec.layers[int(place[1])].branches[int(place[2]) if place[3] == "body" else 0].kind


def _with_groups(pattern: str) -> re.Pattern[str]:
    """Compile the regular expression that matches names of ``pattern`` and captures its indices."""
    escaped = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\d+)", re.escape(pattern))
    return re.compile(escaped.replace(r"\*", "(?P<leaf>weight|bias)"))


def fill_indices(pattern: str, values: Mapping[str, str | int]) -> str:
    """Return the name that ``pattern`` stands for, given ``values`` of its indices and, as ``leaf``, of ``*``."""
    numbered = _INDEX.sub(lambda match: str(_computed(int(values[match[1]]), match[2] or "")), pattern)
    return numbered.replace("*", str(values.get("leaf", "*")))


def _computed(index: int, change: str) -> int:
    """Apply a change such as "+1" or "//2" to ``index`` and return the result."""
    return index // int(change[2:]) if change.startswith("//") else index + int(change or 0)


def indices_of(pattern: str) -> set[str]:
    """Return the names of the indices of a pattern."""
    return {match[1] for match in _INDEX.finditer(pattern)}


def expression(pattern: str) -> str:
    """Return the regular expression of ``pattern``, in which an index is any number and ``*`` any text."""
    return re.sub(r"\\\{\w+(\\[+-]\d+|//\d+)?\\\}", r"\\d+", re.escape(pattern)).replace(r"\*", ".*")


def reason_for(name: str, reasons: Reasons) -> str | None:
    """Return the reason why a stored tensor is ignored, or None if no pattern matches."""
    return next((reason for pattern, reason in reasons.items() if re.fullmatch(expression(pattern), name)), None)


def split_slice(name: str) -> tuple[str, int | None]:
    """Split ``name`` into (name of the stored tensor, index of the slice along its first axis or None)."""
    match = _SLICE.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, None)
