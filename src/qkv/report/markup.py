"""Build HTML and SVG with escaping by type: ``str`` is always escaped, ``Markup`` never."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

_SPECIAL = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_VOID = {"meta", "br", "link", "img"}
_SHAPES = {"rect", "path", "line", "circle", "image"}


class Markup(str):
    """String of HTML or SVG, which is inserted without escaping."""

    __slots__ = ()


def visible(text: object) -> str:
    r"""Convert an object to text, and replace the characters that XML forbids or that control a terminal.

    They are replaced by symbols: NUL by ␀, a lone surrogate by �. Line ends become ``\n``; tabs and line ends are kept.
    """
    return _HIDDEN.sub(_symbol, str(text).replace("\r\n", "\n"))


def _symbol(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"


def escape(text: object) -> Markup:
    """Escape ``text`` for elements and quoted attributes of HTML and XML; ``Markup`` is returned unchanged."""
    return text if isinstance(text, Markup) else Markup(visible(text).translate(_SPECIAL))


def tag(element: str, *children: object, **attributes: object) -> Markup:
    """Build an HTML or SVG element. Children and attributes that are ``None`` or ``False`` are omitted.

    The argument ``class_`` becomes the attribute ``class``, ``data_x`` becomes ``data-x``.
    """
    names = "".join(
        _attribute(name, value) for name, value in attributes.items() if value is not None and value is not False
    )
    if element in _VOID:
        return Markup(f"<{element}{names}>")
    if element in _SHAPES and not children:
        return Markup(f"<{element}{names}/>")
    return Markup(f"<{element}{names}>{join(children)}</{element}>")


def _attribute(name: str, value: object) -> str:
    name = name.removesuffix("_").replace("_", "-")
    if isinstance(value, float):
        value = number(value)
    return f' {name}="{name if value is True else escape(value)}"'


def join(children: Iterable[object]) -> Markup:
    """Concatenate children to markup; strings are escaped, ``None`` and ``False`` omitted."""
    return Markup("".join(escape(child) for child in children if child is not None and child is not False))


def number(value: float) -> str:
    """Format a coordinate in an SVG, with at most one decimal."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def script_json(data: Any) -> Markup:
    """Encode data as strict JSON that is safe inside an HTML script element; NaN and infinities become null."""
    text = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def finite(data: Any) -> Any:
    """Copy ``data`` (nested dicts and lists) and replace NaN and infinities, which JSON cannot represent, by None."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {str(key): finite(value) for key, value in data.items()}
    return [finite(value) for value in data] if isinstance(data, (list, tuple)) else data
