"""Tool calls whose arguments stand one by one between tags, strings as plain text and other values as JSON.

    <tool_call>                     <tool_call>f                        <minimax:tool_call>
    <function=f>                    <arg_key>a</arg_key>                <invoke name="f">
    <parameter=a>                   <arg_value>1</arg_value>            <parameter name="a">1</parameter>
    1                               </tool_call>                        </invoke>
    </parameter>                                                        </minimax:tool_call>
    </function>
    </tool_call>

On the left is the form of Qwen3-Coder, then those of GLM 4.5 and MiniMax M2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qkv.tokenizers.answers.calls import Call, CallForm, Demand, Schemas, properties, register, text_parts


@dataclass(frozen=True)
class ParameterCalls(CallForm):
    """Calls as ``head[0]`` NAME ``head[1]``, then for each argument ``key[0]`` NAME ``key[1]`` VALUE ``key[2]``, then
    ``tail``.
    """

    name: str
    begin: str
    end: str
    head: tuple[str, str]
    key: tuple[str, str, str]
    tail: str
    gap: str = "\n"

    def read(self, text: str, schemas: Schemas) -> list[Call]:
        """Parse calls one after another. A value is text if the schema of its parameter allows only strings, else
        JSON, or text that is not valid JSON.
        """
        one = self._pattern(*self.head, r"([^\s<>\"]+)") + rf"\s*((?:{self._argument}\s*)*)" + _loose(self.tail)
        calls, place = list[Call](), 0
        while text[place:].strip():
            match = re.compile(rf"\s*{one}\s*", re.DOTALL).match(text, place)
            if match is None:
                raise ValueError("no function with its parameters")
            schema = schemas.get(match[1], {}).get("properties", {})
            arguments = {name: _value(content, schema.get(name)) for name, content in self._arguments(match[2])}
            calls.append((match[1], arguments))
            place = match.end()
        return calls

    def _arguments(self, text: str) -> list[tuple[str, str]]:
        between = (_loose(self.key[0]), _loose(self.key[1]), _loose(self.key[2]))
        pattern = rf"{between[0]}([^<>\"]+?){between[1]}(.*?){between[2]}"
        return re.findall(pattern, text, re.DOTALL)

    @property
    def _argument(self) -> str:
        return rf"{_loose(self.key[0])}[^<>\"]+?{_loose(self.key[1])}.*?{_loose(self.key[2])}"

    def _pattern(self, before: str, after: str, name: str) -> str:
        return rf"{_loose(before)}{name}{_loose(after)}"

    def write(self, calls: Sequence[Call]) -> str:
        """Write each call between ``begin`` and ``end``."""
        return "\n".join(f"{self.begin}{self.gap}{self._text(*call)}{self.end}" for call in calls)

    def _text(self, name: str, arguments: Mapping[str, Any]) -> str:
        before, between, after = self.key
        pairs = "".join(f"{before}{key}{between}{_written(each)}{after}" for key, each in arguments.items())
        return f"{self.head[0]}{name}{self.head[1]}{pairs}{self.tail}"

    def demand(self, schemas: Schemas) -> Demand:
        """Return the parts of a call of each function: its parameters, the required ones first."""
        return Demand("sequence", [self._parts(name, schema) for name, schema in schemas.items()])

    def _parts(self, name: str, schema: Mapping[str, Any]) -> list[Any]:
        parts: list[Any] = [f"{self.head[0]}{name}{self.head[1]}"]
        for key, each, needed in properties(schema):
            begin, after = f"{self.key[0]}{key}{self.key[1]}", self.key[2]
            value = text_parts(each, after) or [{"schema": each}, after]
            parts += [begin, *value] if needed else [{"maybe": [begin, *value]}]
        return [*parts, self.tail]


def _loose(text: str) -> str:
    """Return a pattern of ``text`` in which the line breaks at its borders may be missing."""
    inner = re.escape(text.strip("\n"))
    before, after = (r"\n?" if broken else "" for broken in (text.startswith("\n"), text.endswith("\n")))
    return f"{before}{inner}{after}"


def _value(text: str, schema: Mapping[str, Any] | None) -> Any:
    if schema and text_parts(schema, ""):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


QWEN_CODER = register(
    ParameterCalls(
        "qwen_coder",
        "<tool_call>",
        "</tool_call>",
        ("<function=", ">\n"),
        ("<parameter=", ">\n", "\n</parameter>\n"),
        "</function>\n",
    )
)
GLM = register(
    ParameterCalls(
        "glm",
        "<tool_call>",
        "</tool_call>",
        ("", "\n"),
        ("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
        "",
        gap="",
    )
)
MINIMAX = register(
    ParameterCalls(
        "minimax",
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        ('<invoke name="', '">\n'),
        ('<parameter name="', '">', "</parameter>\n"),
        "</invoke>\n",
    )
)
