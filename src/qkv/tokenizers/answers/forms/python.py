"""Tool calls as calls of Python functions with named arguments.

[f(a=1), g(b="x")]                                        Llama 4, Gemma 3, where calls are the whole answer
<|tool_call_start|>[f(a=1)]<|tool_call_end|>              LFM2
<function_calls>f(a=1)</function_calls>                   Olmo 3, one call per line
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qkv.tokenizers.answers.calls import Call, CallForm, Demand, Schemas, argument_parts, register

_WORDS = {"true": True, "false": False, "null": None}
"""Literals of JSON, which models write in Python too."""


@dataclass(frozen=True)
class PythonCalls(CallForm):
    """Calls as Python expressions. listed: whether they are in brackets; else each is on a line."""

    name: str
    begin: str = ""
    end: str = ""
    listed: bool = True
    starts: tuple[str, ...] = ()

    def read(self, text: str, schemas: Schemas) -> list[Call]:
        """Parse the expressions; nothing is executed."""
        source = text.strip() if self.listed else f"[{','.join(filter(str.strip, text.splitlines()))}]"
        try:
            tree = ast.parse(source, mode="eval").body
        except (SyntaxError, RecursionError, MemoryError):
            raise ValueError("not a list of calls") from None
        if not isinstance(tree, ast.List) or not tree.elts:
            raise ValueError("not a list of calls")
        return [_call(each) for each in tree.elts]

    def write(self, calls: Sequence[Call]) -> str:
        """Write the calls, with Python's literals."""
        texts = [f"{name}({', '.join(f'{key}={each!r}' for key, each in values.items())})" for name, values in calls]
        inner = f"[{', '.join(texts)}]" if self.listed else "\n".join(texts)
        return f"{self.begin}{inner}{self.end}"

    def demand(self, schemas: Schemas) -> Demand:
        """Return the parts of a call of each function, with values as JSON, which ``read`` takes too."""
        begin, end = ("[", "]") if self.listed else ("", "")
        calls = [[f"{begin}{name}(", *argument_parts(schema, ", ", "="), f"){end}"] for name, schema in schemas.items()]
        return Demand("sequence", calls)


def _call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args or any(each.arg is None for each in node.keywords):
        raise ValueError("not a call with named arguments")
    return ast.unparse(node.func), {str(each.arg): _value(each.value) for each in node.keywords}


def _value(node: ast.expr) -> Any:
    """Return the value of a literal of Python or JSON. Raises ``ValueError`` for another expression."""

    class Literals(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return ast.Constant(_WORDS[name.id]) if name.id in _WORDS else name

    try:
        value = ast.literal_eval(Literals().visit(node))
        json.dumps(value)
    except (TypeError, SyntaxError, MemoryError, RecursionError):
        raise ValueError("an argument is not a literal") from None
    return value


LFM = register(PythonCalls("lfm", "<|tool_call_start|>", "<|tool_call_end|>"))
OLMO = register(PythonCalls("olmo", "<function_calls>", "</function_calls>", listed=False))
PYTHON = register(PythonCalls("python", starts=("[",)))
