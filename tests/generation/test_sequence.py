"""Constraints of parts one after another: fixed texts with special tokens, JSON, free texts and options."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.serving.models import byte_pairs

from qkv.generation.logits.constrain import Constraint
from qkv.system.errors import UserError

TOKENIZER = byte_pairs("bos", "eos").with_specials((), ["<|sep|>"])
NUMBER = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "integer"}}}
PARTS: list[list[Any]] = [
    ["call<|sep|>f\n", {"schema": {**NUMBER, "required": ["a"]}}],
    ['<"g">', {"until": "</x>"}, {"maybe": ["b=", {"any": ["one", "two"]}, ";"]}, "end"],
    ["h", {"until": "<|sep|>"}, "end"],
]


@pytest.mark.parametrize(
    ("text", "possible"),
    [
        ('call<|sep|>f\n{"a": 5}', True),
        ('call<|sep|>f\n{"a": "5"}', False),
        ('callf\n{"a": 5}', False),
        ('<"g">any <b> text\n</x </x>end', True),
        ('<"g"></x>b=two;end', True),
        ('<"g"></x>b=three;end', False),
        ('<"g">text end', False),
        ("hany <b><|sep|>end", True),
        ("hany <b>end", False),
    ],
)
def test_a_text_is_one_of_the_alternatives(text: str, possible: bool) -> None:
    guide = Constraint(TOKENIZER, sequence=json.dumps(PARTS)).guide()
    ids = TOKENIZER.reading_special.encode(text)
    guide.accepted(ids[: guide.possible(ids)])
    assert guide.complete == possible


def test_what_a_schema_cannot_enforce_is_named() -> None:
    part = {"schema": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}}
    assert Constraint(TOKENIZER, sequence=json.dumps([["a", part]])).dropped == ("uniqueItems at #",)


def test_a_wrong_schema_is_refused() -> None:
    with pytest.raises(UserError, match=r"the JSON schema cannot be used: .*objec"):
        Constraint(TOKENIZER, sequence=json.dumps([["a", {"schema": {"type": "objec"}}]]))
