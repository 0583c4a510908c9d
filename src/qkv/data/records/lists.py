"""Parse lists that were printed into one cell of a table, as JSON or as Python and NumPy print them."""

from __future__ import annotations

import json
import re
from typing import Any

_BRACKETS = {"[": "]", "(": ")", "{": "}"}
_QUOTED = re.compile(r"""u?'((?:[^'\\]|\\.)*)'|u?"((?:[^"\\]|\\.)*)\"""", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_BEGIN = re.compile(r"""\s*\[\s*['"]""")
_BETWEEN = re.compile(r"[\s,]*")
_EMPTY = ("set()", "frozenset()", "list()", "tuple()")


def printed_list(text: str) -> list[Any] | None:
    """Parse a list in brackets: JSON, ``['a', 'b']``, ``('a', 'b')``, ``{'a', 'b'}``, or NumPy's ``['a' 'b']``.

    None for other texts.
    """
    text = text.strip()
    if text in _EMPTY:
        return []
    if len(text) < 2 or _BRACKETS.get(text[0]) != text[-1]:
        return None
    if text[0] == "[":
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass
    inner = text[1:-1].strip()
    if not inner:
        return [] if text[0] == "[" else None
    return _quoted(inner)


def begins_list(text: str) -> bool:
    """Return True if a text begins like a printed list of texts, ``["`` or ``['``."""
    return _BEGIN.match(text) is not None


def _quoted(inner: str) -> list[str] | None:
    """Return the items between quotes; None if there is anything but commas and white space between them."""
    items = list[str]()
    at = 0
    while at < len(inner):
        item = _QUOTED.match(inner, at)
        if item is None:
            return None
        items.append(_ESCAPED.sub(r"\1", item[1] if item[1] is not None else item[2]))
        between = _BETWEEN.match(inner, item.end())
        assert between is not None
        if between.end() == item.end() < len(inner):  # two items without a separator
            return None
        at = between.end()
    return items
