"""Constraints of answers that have to call a tool, or that are JSON beside tools.

How a model writes calls is a form of ``qkv.tokenizers.answers``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from qkv.serving.requests.structure import Structure
from qkv.tokenizers.answers.calls import CallForm, schemas_of
from qkv.tokenizers.answers.forms.json_calls import PLAIN, JsonCalls, moved


def required_call(tools: Sequence[Mapping[str, Any]], form: CallForm) -> Structure:
    """Return the constraint of exactly one call of one of the tools."""
    demand = form.demand(schemas_of(tools))
    return Structure(demand.kind, json.dumps(demand.tree), "tools")


def plain_calls(form: CallForm) -> JsonCalls:
    """Return the form of calls that are JSON objects as the whole answer, with the keys of ``form``."""
    return replace(PLAIN, arguments=form.arguments) if isinstance(form, JsonCalls) else PLAIN


def call_or_answer(tools: Sequence[Mapping[str, Any]], form: JsonCalls, answer: Structure) -> Structure:
    """Build the JSON schema of either one call of one of the tools or JSON that the schema of ``answer`` allows."""
    try:
        schema = json.loads(answer.text)
    except (ValueError, RecursionError):
        return answer  # the invalid schema is refused when it is compiled
    both = form.schema(schemas_of(tools))
    both["$defs"]["answer"] = moved(schema, "#/$defs/answer")
    both["anyOf"].append({"$ref": "#/$defs/answer"})
    return Structure("json_schema", json.dumps(both), answer.name)
