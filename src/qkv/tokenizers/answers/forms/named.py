"""Tool calls as the name of a function and JSON of its arguments, between marks.

[TOOL_CALLS]f[ARGS]{…}                                            Mistral since version 11 of its tokenizer
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f    DeepSeek V3, R1: JSON in a fenced block
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}        DeepSeek V3.1
<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}     Kimi K2
<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>                     harmony
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from qkv.tokenizers.answers.calls import Call, CallForm, Demand, Schemas, register

_NAME = r"([A-Za-z0-9_.\-]+)"


@dataclass(frozen=True)
class NamedCalls(CallForm):
    """Calls as ``before`` NAME ``between`` JSON ``after``, in which ``#`` stands for the number of the call. again:
    text between two calls. optional: pattern of a text between the name and ``between`` that is read, not written.
    """

    name: str
    begin: str
    end: str = ""
    before: str = ""
    between: str = ""
    after: str = ""
    again: str = ""
    optional: str = ""
    short_ids: bool = False

    def read(self, text: str, schemas: Schemas) -> list[Call]:
        """Parse calls one after another; the text after the last may be missing."""
        calls, place, decoder = list[Call](), 0, json.JSONDecoder()
        between = re.escape(self.between).replace(r"\#", r"\d+")
        head = re.compile(rf"\s*{re.escape(self.before)}\s*{_NAME}{self.optional}{between}\s*")
        rest = re.compile(rf"\s*(?:{re.escape(self.after.strip())}\s*)?(?:{re.escape(self.again.strip())}\s*)?")
        while place < len(text):
            match = head.match(text, place)
            if match is None:
                raise ValueError("no name of a function")
            try:
                arguments, place = decoder.raw_decode(text, match.end())
            except RecursionError:
                raise ValueError("nested too deeply") from None
            calls.append((match[1], arguments))
            place = rest.match(text, place).end()  # pyright: ignore
        return calls

    def write(self, calls: Sequence[Call]) -> str:
        """Write the calls with their marks."""
        texts = [
            f"{self.before}{name}{self.between.replace('#', str(i))}{json.dumps(arguments, ensure_ascii=False)}"
            f"{self.after}"
            for i, (name, arguments) in enumerate(calls)
        ]
        return f"{self.begin}{self.again.join(texts)}{self.end}"

    def demand(self, schemas: Schemas) -> Demand:
        """Return the parts of a call of each function: its name between marks, and the schema of its arguments."""
        between = self.between.replace("#", "0")
        return Demand(
            "sequence", [[f"{self.before}{name}{between}", {"schema": schema}] for name, schema in schemas.items()]
        )


MISTRAL = register(
    NamedCalls(
        "mistral_args",
        "[TOOL_CALLS]",
        between="[ARGS]",
        again="[TOOL_CALLS]",
        optional=r"(?:\[CALL_ID\]\w+)?",
        short_ids=True,
    )
)
_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
DEEPSEEK = register(
    NamedCalls(
        "deepseek",
        *_SECTION,
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        "\n```json\n",
        "\n```<｜tool▁call▁end｜>",
        "\n",
    )
)
DEEPSEEK_31 = register(
    NamedCalls("deepseek_31", *_SECTION, "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
)
KIMI = register(
    NamedCalls(
        "kimi",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>functions.",
        ":#<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    )
)
HARMONY = register(
    NamedCalls("harmony", "<|channel|>commentary to=functions.", "<|call|>", between=" <|constrain|>json<|message|>")
)
