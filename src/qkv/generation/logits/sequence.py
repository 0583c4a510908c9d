"""Texts made of parts: fixed texts with special tokens, JSON of a schema, free texts, options; as a grammar.

    [["f(", {"schema": {"type": "integer"}}, ")"], ["g(", {"maybe": ["a=", {"until": ")"}]}]]

is a list of alternatives. A part is a text; ``schema``, JSON that a schema allows; ``until``, any text up to and with
the given one; ``any``, one of several texts; ``maybe``, parts that may be missing. The grammar is written in the
variant of Lark that the library llguidance reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Parts = Sequence[Any]
_ANY = r"/(.|\n)*/"
"""Expression of any text."""


def sequence_grammar(
    alternatives: Sequence[Parts], specials: Mapping[str, int], schema: Callable[[Mapping[str, Any]], str]
) -> str:
    """Return the grammar of a text that is one of the ``alternatives``.

    specials: id of each special token, which a fixed text may spell. schema: function that returns a JSON schema as
    llguidance reads it.
    """
    rules = _Rules(specials, schema)
    start = " | ".join(rules.name(rules.parts(each)) for each in alternatives)
    return "\n".join([f"start: {start}", *rules.lines])


class _Rules:
    """Rules of a grammar, which the methods add to ``lines``."""

    def __init__(self, specials: Mapping[str, int], schema: Callable[[Mapping[str, Any]], str]):
        self._specials, self._schema, self.lines = specials, schema, list[str]()
        longest = sorted(specials, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest)) or r"(?!)")

    def name(self, content: str, options: str = "") -> str:
        """Add a rule; return its name."""
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name}{options}: {content}")
        return name

    def parts(self, parts: Parts) -> str:
        """Return the expression of parts one after another."""
        return " ".join(filter(None, map(self._part, parts))) or '""'

    def _part(self, part: Any) -> str:
        if isinstance(part, str):
            return self._text(part)
        ((kind, content),) = part.items()
        if kind == "schema":
            return self.name(f"%json {self._schema(content)}")
        if kind == "until" and content in self._specials:
            return f"{self.name(_ANY)} {self._text(content)}"
        if kind == "until":
            return self.name(_ANY, f"[suffix={_quoted(content)}]")
        if kind == "any":
            return self.name(" | ".join(map(_quoted, content)))
        return f"({self.parts(content)})?"

    def _text(self, text: str) -> str:
        pieces, begin = list[str](), 0
        for match in self._special.finditer(text):
            pieces += [_quoted(text[begin : match.start()]), f"<[{self._specials[match[0]]}]>"]
            begin = match.end()
        return " ".join(piece for piece in [*pieces, _quoted(text[begin:])] if piece != '""')


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
