"""Report labels that differ only in case or spacing, and may be one label."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from qkv.data.records.model import Role

_SHOWN = 3
"""Maximum number of groups of labels in a sentence."""


def variants(rows: Sequence[Mapping[str, Any]], roles: Sequence[Role], name: str) -> list[str]:
    """Return one sentence per role with labels that are equal except for case, white space and Unicode forms.

    They stay different labels, because case distinguishes some labels, such as chemical symbols and tags.
    """
    grouped = ((role, _groups(_labels(rows, role))) for role in roles if role.kind in ("label", "labels", "tags"))
    return [_sentence(role, groups, name) for role, groups in grouped if groups]


def _labels(rows: Sequence[Mapping[str, Any]], role: Role) -> Counter[str]:
    if role.kind == "label":
        return Counter(row[role.name] for row in rows)
    return Counter(label for row in rows for label in row[role.name])


def _groups(counts: Counter[str]) -> list[list[tuple[str, int]]]:
    """Group labels, with their counts, that have the same normalised form; groups of one label are left out."""
    alike: dict[str, list[tuple[str, int]]] = {}
    for label, count in counts.most_common():
        alike.setdefault("".join(unicodedata.normalize("NFKC", label).casefold().split()), []).append((label, count))
    return [group for group in alike.values() if len(group) > 1]


def _sentence(role: Role, groups: Sequence[Sequence[tuple[str, int]]], name: str) -> str:
    some = "; ".join(" and ".join(f"{label!r} ({count:,})" for label, count in group) for group in groups[:_SHOWN])
    more = f"; and {len(groups) - _SHOWN:,} more such groups" if len(groups) > _SHOWN else ""
    noun = "labels" if role.kind == "label" else role.name
    return (
        f"{name}: {noun} differ only in case or spacing: {some}{more}; "
        "they count as different; if they mean the same, write them in the same way"
    )
