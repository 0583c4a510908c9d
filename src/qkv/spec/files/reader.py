"""Safe reader of YAML 1.2 and JSON: plain data with the line of every key; input cannot construct objects.

PyYAML implements YAML 1.1, where ``1e-3`` is text and ``no`` is false; it keeps the last of two equal keys and expands
aliases without bound. So this module uses only its events, and composes values and resolves scalars itself.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NoReturn, cast

import yaml

from qkv.spec.errors import Problem, SpecError
from qkv.system.errors import quoted

SpecPath = tuple[str | int, ...]
Lines = dict[SpecPath, int]

MAX_DEPTH = 64
MAX_VALUES = 100_000

_LIBYAML: Any = getattr(yaml, "CSafeLoader", None)
_INTEGER = re.compile(r"[-+]?[0-9]+\Z|0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029]")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


def scalar(text: str) -> Any:
    """Resolve a plain scalar by YAML 1.2's core schema: null, true, false, a number, or text."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        if _INTEGER.match(text):
            return int(text, 0 if text[:2] in ("0o", "0x") else 10)
        return float(text) if _FLOAT.match(text) else text
    except ValueError:  # Python refuses to parse integers of more than 4,300 digits
        return float("inf")


def read_yaml(text: str, source: str = "") -> tuple[Any, Lines]:
    """Read one YAML document; return plain data and the line of every path. Raises ``SpecError``.

    libyaml, if PyYAML was built with it, parses ten times faster than PyYAML's own parser, whose error messages are
    more precise. Unlike that parser, libyaml accepts tabs between words and question marks in flow lists.
    """
    if _LIBYAML is not None and not {"\t", "?"} & set(text):
        with contextlib.suppress(yaml.YAMLError, UnicodeError):
            return _read(_Reader(source, text), _LIBYAML)
    reader = _Reader(source, text)
    try:
        return _read(reader, yaml.SafeLoader)
    except yaml.YAMLError as error:
        reader.refuse_syntax(error)


def _read(reader: _Reader, loader: Any) -> tuple[Any, Lines]:
    return reader.document(loader), reader.lines


def read_json(text: str, source: str = "") -> tuple[Any, Lines]:
    """Read one JSON document; return plain data and the line of every path. Raises ``SpecError``."""
    if not text.strip():
        return None, {}
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise _error(source, error.lineno, f"this is not JSON: {error.msg[0].lower() + error.msg[1:]}") from None
    except _NotFinite as error:
        raise _error(source, 0, f"{error} is not a finite number; a spec needs finite numbers") from None
    except (ValueError, RecursionError):
        raise _error(source, 0, "a number is too long, or the data is nested too deeply") from None
    # Lines come from reading the JSON as YAML, after replacing tabs and characters that YAML does not allow.
    return data, read_yaml(_NOT_YAML.sub(lambda c: chr(0xE000 + ord(c[0])), text.replace("\t", " ")), source)[1]


class _NotFinite(ValueError):
    """Error for NaN or Infinity, which Python's JSON reader accepts and JSON does not allow."""


def _refuse_constant(word: str) -> NoReturn:
    raise _NotFinite(word)


def _error(source: str, line: int, sentence: str) -> SpecError:
    return SpecError([Problem((), sentence)], f"{source}:{line}".lstrip(":") if line else source)


class _Reader:
    """Reader of one document: composes plain data and line numbers from PyYAML's events."""

    def __init__(self, source: str, text: str):
        self.source, self.text = source, text
        self.lines: Lines = {}
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.count = 0
        self.events: Iterator[Any] = iter(())

    def document(self, loader: Any) -> Any:
        self.events = cast("Iterator[Any]", yaml.parse(self.text, Loader=loader))  # pyright: ignore[reportUnknownMemberType]
        self._next()
        if isinstance(self._next(), yaml.StreamEndEvent):
            return None
        value = self._value(self._next(), (), 0)
        self._next()
        following = self._next()
        if not isinstance(following, yaml.StreamEndEvent):
            self._refuse(following, "a second document begins here ('---'); a file holds one")
        return value

    def _next(self) -> Any:
        return next(self.events)

    def _refuse(self, event: Any, sentence: str) -> NoReturn:
        raise _error(self.source, event.start_mark.line + 1, sentence)

    def _value(self, event: Any, path: SpecPath, depth: int, in_flow: bool = False) -> Any:
        self._check(event, depth)
        self.lines.setdefault(path, event.start_mark.line + 1)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self.count
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, in_flow)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(path, depth, bool(event.flow_style))
        else:
            value = self._mapping(path, depth, bool(event.flow_style))
        if event.anchor:
            self.anchors[event.anchor] = (value, self.count - before + 1)
        return value

    def _check(self, event: Any, depth: int, size: int = 1) -> None:
        self.count += size
        if self.count > MAX_VALUES:
            self._refuse(event, f"the file has more than {MAX_VALUES:,} values, repetitions by aliases included")
        if depth > MAX_DEPTH:
            self._refuse(event, f"the data is nested deeper than {MAX_DEPTH} levels")
        tag = getattr(event, "tag", None)
        if tag:
            self._refuse(
                event,
                f"the tag {quoted(tag.replace('tag:yaml.org,2002:', '!!'))} is not allowed in plain data; remove it",
            )

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self.anchors:
            self._refuse(
                event, f"{quoted('*' + event.anchor)} refers to no anchor above; text that begins with '*' needs quotes"
            )
        value, size = self.anchors[event.anchor]
        self._check(event, 0, size)
        # A copy, so that an override of one occurrence does not change the other.
        return deepcopy(value)

    def _scalar(self, event: Any, in_flow: bool) -> Any:
        if not event.implicit[0]:
            return event.value
        if in_flow and event.value.count("(") > event.value.count(")"):
            self._refuse(
                event,
                f"{quoted(event.value)} ends at a comma; inside [ ] and {{ }} a short form with commas needs quotes "
                "around it",
            )
        value = scalar(event.value)
        if isinstance(value, int) and value.bit_length() > 63:
            self._refuse(event, f"{quoted(event.value)} needs more than 64 bits, the maximum of an integer in a spec")
        if isinstance(value, float) and not math.isfinite(value):
            self._refuse(event, f"{quoted(event.value)} is not a finite number; a spec needs finite numbers")
        return value

    def _sequence(self, path: SpecPath, depth: int, in_flow: bool) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            items.append(self._value(event, (*path, len(items)), depth + 1, in_flow))
        return items

    def _mapping(self, path: SpecPath, depth: int, in_flow: bool) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._refuse(event, "a key is a word, not a list, a mapping or an alias")
            self._check(event, depth)
            key = str(event.value)
            here = (*path, key)
            if key == "<<":
                self._refuse(event, "the merge key '<<' is not part of YAML 1.2; write the keys out")
            if key in fields:
                self._refuse(event, f"the key {quoted(key)} is also set in line {self.lines[here]}; remove one of them")
            self.lines[here] = event.start_mark.line + 1
            fields[key] = self._value(self._next(), here, depth + 1, in_flow)
        return fields

    def refuse_syntax(self, error: yaml.YAMLError) -> NoReturn:
        """Raise ``SpecError`` for PyYAML's syntax error, in one sentence; it names tabs, the most frequent cause."""
        mark = getattr(error, "problem_mark", None)
        rows = self.text.split("\n")
        if mark is None:
            position = getattr(error, "position", 0)
            line = self.text.count("\n", 0, position) + 1
            raise _error(
                self.source, line, f"the character {self.text[position : position + 1]!r} is not allowed in YAML"
            ) from None
        tabbed = [i for i, row in enumerate(rows[: mark.line + 1], 1) if re.match(r" *\t", row)]
        if self.text[mark.index : mark.index + 1] == "\t":
            tabbed = [mark.line + 1]
        if tabbed:
            raise _error(
                self.source, tabbed[-1], "there is a tab here, but YAML allows only spaces; replace each tab by spaces"
            ) from None
        begun = getattr(error, "context_mark", None)
        since = f" that begins in line {begun.line + 1}" if begun and begun.line != mark.line else ""
        context = getattr(error, "context", None)
        complaint = ", ".join(filter(None, (context and context + since, getattr(error, "problem", None))))
        raise _error(self.source, mark.line + 1, f"this is not YAML: {complaint}") from None
