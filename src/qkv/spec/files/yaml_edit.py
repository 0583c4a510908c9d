"""Replacement of top-level keys of a YAML file as text; comments, order and layout of other keys do not change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import yaml

from qkv.spec.files.reader import read_yaml
from qkv.system.errors import UserError


class InLine(dict[str, Any]):
    """Mapping to be written in flow style, in braces on one line."""


class _Lines(dict[str, Any]):
    """Mapping to be written in block style, one line per key."""


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _in_braces(dumper: yaml.SafeDumper, data: InLine) -> yaml.MappingNode:
    return dumper.represent_mapping("tag:yaml.org,2002:map", data, flow_style=True)  # pyright: ignore[reportUnknownMemberType]


def _in_lines(dumper: yaml.SafeDumper, data: _Lines) -> yaml.MappingNode:
    return dumper.represent_mapping("tag:yaml.org,2002:map", data, flow_style=False)  # pyright: ignore[reportUnknownMemberType]


_Dumper.add_representer(InLine, _in_braces)
_Dumper.add_representer(_Lines, _in_lines)


def block(key: str, value: Any) -> str:
    """Format ``key`` and ``value`` as YAML lines; lists of plain values and ``InLine`` mappings take one line each."""
    text: str = yaml.dump(
        _Lines({key: value}), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=150, default_flow_style=None
    )
    return text


def with_keys(text: str, values: Mapping[str, Any], source: str = "") -> str:
    """Set top-level keys in the YAML ``text``: a value replaces the key's block or is appended, None removes the key.

    Raises ``UserError`` if the file is a flow-style mapping (braces), or if other keys would change.
    """
    before = read_yaml(text, source)[0]
    for key, value in values.items():
        text = _with_key(text, key, None if value is None else block(key, value), source)
    after = read_yaml(text, source)[0]
    if {k: v for k, v in before.items() if k not in values} != {k: v for k, v in after.items() if k not in values}:
        raise UserError(
            f"{source}: this edit would change other keys, too, perhaps by a YAML anchor; "
            f"edit {', '.join(values)} by hand"
        )
    return text


def _with_key(text: str, key: str, lines: str | None, source: str) -> str:
    node = cast("yaml.Node | None", yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        raise UserError(f"{source}: the file must be a YAML mapping in block style, with each key on its own line")
    rows: list[str] = text.splitlines(keepends=True)
    keys = cast("list[tuple[yaml.Node, yaml.Node]]", node.value)
    place = next(((k.start_mark.line, v.end_mark) for k, v in keys if k.value == key), None)
    if place is None:
        ended = text if text.endswith("\n") or not text else text + "\n"
        return ended + (lines or "")
    first, mark = place
    last = max(first + 1, mark.line + (mark.column > 0))
    # A block ends where the next key begins; comments and empty lines before it belong to the next key.
    while last > first + 1 and (not rows[last - 1].strip() or rows[last - 1].startswith("#")):
        last -= 1
    return "".join([*rows[:first], lines or "", *rows[last:]])
