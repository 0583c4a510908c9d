"""Tool calls of Gemma: objects with plain keys, in which strings stand between tokens instead of quotes.

    <|tool_call>call:f{a:<|"|>x<|"|>,b:[1,2]}<tool_call|>                                    Gemma 4
    <start_function_call>call:f{a:<escape>x<escape>,b:[1,2]}<end_function_call>              FunctionGemma

Gemma 4 reasons between ``<|channel>thought`` and ``<channel|>``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qkv.tokenizers.answers import thoughts
from qkv.tokenizers.answers.calls import Call, CallForm, Demand, Schemas, argument_parts, register, text_parts

_HEAD = re.compile(r"\s*call:([A-Za-z0-9_.\-]+)(?=\{)")
_KEY = re.compile(r"\s*([^\s:{}\[\],\"<>]+)\s*:\s*")


@dataclass(frozen=True)
class QuotedCalls(CallForm):
    """Calls as ``call:NAME{KEY:VALUE,…}``. quote: text around a string."""

    name: str
    begin: str
    end: str
    quote: str

    def read(self, text: str, schemas: Schemas) -> list[Call]:
        """Parse calls one after another. Strings may stand between quotes of JSON too."""
        calls, place = list[Call](), 0
        while text[place:].strip():
            match = _HEAD.match(text, place)
            if match is None:
                raise ValueError("no name of a function")
            try:
                arguments, place = self._value(text, match.end())
            except (IndexError, RecursionError):
                raise ValueError("the arguments end too early, or are nested too deeply") from None
            calls.append((match[1], arguments))
        return calls

    def _value(self, text: str, place: int) -> tuple[Any, int]:
        """Parse the value at ``place``; return it and the place after it."""
        place += len(text[place:]) - len(text[place:].lstrip())
        if text.startswith(self.quote, place):
            begin = place + len(self.quote)
            end = text.index(self.quote, begin)
            return text[begin:end], end + len(self.quote)
        if text[place] in "{[":
            return self._nested(text, place)
        return json.JSONDecoder().raw_decode(text, place)

    def _nested(self, text: str, place: int) -> tuple[Any, int]:
        """Parse an object or a list."""
        closing, values = {"{": "}", "[": "]"}[text[place]], list[tuple[str, Any]]()
        place += 1
        while text[place:].lstrip()[0] != closing:
            key = ""
            if closing == "}":
                key, place = self._key(text, place)
            value, place = self._value(text, place)
            values.append((key, value))
            rest = text[place:].lstrip()
            place = len(text) - len(rest) + (rest[0] == ",")
            if rest[0] not in (",", closing):
                raise ValueError("a comma or the end is missing")
        end = len(text) - len(text[place:].lstrip()) + 1
        return (dict(values) if closing == "}" else [value for _, value in values]), end

    def _key(self, text: str, place: int) -> tuple[str, int]:
        match = _KEY.match(text, place)
        if match is not None:
            return match[1], match.end()
        key, place = self._value(text, place)
        colon = text.index(":", place)
        if not isinstance(key, str) or text[place:colon].strip():
            raise ValueError("no key")
        return key, colon + 1

    def write(self, calls: Sequence[Call]) -> str:
        """Write each call between ``begin`` and ``end``."""
        return "".join(f"{self.begin}call:{name}{self._text(values)}{self.end}" for name, values in calls)

    def _text(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{key}:{self._text(each)}" for key, each in value.items()) + "}"
        return f"[{','.join(map(self._text, value))}]" if isinstance(value, list) else json.dumps(value)

    def demand(self, schemas: Schemas) -> Demand:
        """Return the parts of a call of each function, with values other than strings as JSON, which ``read`` takes."""
        calls = [
            [f"call:{name}{{", *argument_parts(schema, ",", ":", self._parts), "}"] for name, schema in schemas.items()
        ]
        return Demand("sequence", calls)

    def _parts(self, schema: Mapping[str, Any]) -> list[Any]:
        text = text_parts(schema, self.quote)
        return [{"schema": schema}] if text is None else [self.quote, *text]


GEMMA = register(QuotedCalls("gemma", "<|tool_call>", "<tool_call|>", '<|"|>'))
FUNCTION_GEMMA = register(QuotedCalls("function_gemma", "<start_function_call>", "<end_function_call>", "<escape>"))
THOUGHTS = thoughts.register(thoughts.ThinkingForm("gemma", "<|channel>thought", "<channel|>"))
