"""JSON of schemas as clients write them: closed objects, order, white space, references, keywords that are left out."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.generation.test_constrain import DRAWN, system

from qkv.generation.decode.speculate import Speculator
from qkv.generation.logits import constrain
from qkv.generation.logits.constrain import Constraint, constraint_of
from qkv.generation.logits.json_schema import rewrite
from qkv.generation.queue.requests import Request, RequestQueue
from qkv.generation.text import generate_text, generate_texts
from qkv.spec.generation import Speculation
from qkv.system.errors import UserError

Schema = dict[str, Any]
Pair = tuple[Schema, Schema]
"""A schema as given, and the schema that its texts have to match."""
SHORT = {"type": "string", "maxLength": 4}
SCALARS: list[Pair] = [
    ({"type": "boolean", "title": "Yes", "description": "or no", "default": True}, {"type": "boolean"}),
    ({"type": "null"}, {"type": "null"}),
    ({"enum": ["a", 1, None]}, {"enum": ["a", 1, None]}),
    ({**SHORT, "format": "binary"}, SHORT),
    ({**SHORT, "pattern": "^(?!b)[a-c]*$"}, SHORT),
    ({"oneOf": [{"const": 1}, {"enum": [1, 2]}]}, {"enum": [1, 2]}),
    ({"$ref": "#/$defs/leaf"}, {"type": "object", "properties": {"v": SHORT}, "additionalProperties": False}),
]
LEAF = {"leaf": {"type": "object", "properties": {"v": SHORT}}}


def object_of(inner: dict[str, Pair], required: list[str], split: bool) -> Pair:
    """Object with these properties, half of which are named in a part of their own if ``split``."""
    given = {name: one for name, (one, _) in inner.items()}
    whole = {"type": "object", "properties": {name: one for name, (_, one) in inner.items()}, "required": required}
    strict = {**whole, "additionalProperties": False}
    if not split:
        return {"type": "object", "properties": given, "required": required}, strict
    first, second = dict(list(given.items())[::2]), dict(list(given.items())[1::2])
    parts = [{"properties": first}, {"type": "object", "properties": second, "required": required}]
    return {"allOf": parts, "type": "object"}, strict


def larger(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    names = st.sampled_from(["a", "cat", "mat", "size"])
    objects = st.dictionaries(names, inner, max_size=3).flatmap(
        lambda found: st.builds(
            object_of,
            st.just(found),
            st.lists(st.sampled_from(sorted(found)), unique=True) if found else st.just([]),
            st.booleans(),
        )
    )
    arrays = inner.map(
        lambda one: (
            {"type": "array", "items": one[0], "maxItems": 2, "uniqueItems": True},
            {"type": "array", "items": one[1], "maxItems": 2},
        )
    )
    several = st.tuples(st.sampled_from(["oneOf", "anyOf"]), st.lists(inner, min_size=1, max_size=3)).map(
        lambda drawn: ({drawn[0]: [one for one, _ in drawn[1]]}, {"anyOf": [one for _, one in drawn[1]]})
    )
    return st.one_of(objects, arrays, several)


@settings(max_examples=40, deadline=None)
@given(st.recursive(st.sampled_from(SCALARS), larger, max_leaves=5), st.integers(0, 10**6))
def test_what_random_weights_write_is_json_of_the_closed_schema(pair: Pair, seed: int) -> None:
    m, tokenizer = system("bytes")
    schema, strict = pair
    constraint = Constraint(tokenizer, json_schema=json.dumps({**schema, "$defs": LEAF}))
    generation = DRAWN.changed(seed=seed, max_new_tokens=2000)
    for text in generate_texts(m, tokenizer, ["the", "{"], generation, constraint=constraint):
        jsonschema.validate(json.loads(text), strict)
    said = json.dumps(schema)
    for keyword in ("uniqueItems", "format binary", "pattern"):
        assert (keyword.split()[-1] in said) == any(keyword in each for each in constraint.dropped)


def matches(text: str, schema: Schema, **options: Any) -> bool:
    """True if a constraint lets the whole text be written."""
    guide = Constraint(system("bytes")[1], json_schema=json.dumps(schema), **options).guide()
    return guide.possible(list(text.encode())) == len(text.encode()) and bool(
        len(guide.accepted(list(text.encode()))) and guide.complete
    )


TWO = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "integer"}}}
NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
}
BASE = {"base": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}
CASES: list[tuple[Schema, str, bool]] = [
    (TWO, '{"b": 1, "a": 2}', True),
    (TWO, '{"a": 2, "b": 1}', False),
    (TWO, '{"b":1,"a":2}', True),
    (TWO, '{\n  "b": 1,\n  "a": 2\n}', True),
    (TWO, '{\n\n"b": 1}', False),
    (TWO, '{  "b": 1}', False),
    (TWO, '{"b": 1, "c": 2}', False),
    ({**TWO, "additionalProperties": True}, '{"b": 1, "c": 2}', True),
    ({**TWO, "additionalProperties": {"type": "null"}}, '{"b": 1, "c": null}', True),
    ({**TWO, "required": ["c"]}, '{"c": "x"}', True),
    ({"type": "object"}, '{"c": 2}', True),
    ({"type": "object", "properties": {}}, '{"c": 2}', False),
    ({"type": "object", "unevaluatedProperties": False}, '{"c": 2}', False),
    ({"type": "object", "unevaluatedProperties": False}, "{}", True),
    ({**TWO, "patternProperties": {"^x": {"type": "null"}}}, '{"b": 1, "xy": null}', True),
    ({**TWO, "patternProperties": {"^x": {"type": "null"}}}, '{"b": 1, "y": null}', False),
    (NODE, '{"v": 1, "next": {"v": 2, "next": null}}', True),
    (NODE, '{"v": 1, "next": {"v": 2, "x": null}}', False),
    ({"$defs": BASE, "allOf": [{"$ref": "#/$defs/base"}, TWO]}, '{"a": 1, "b": 2}', True),
    ({"$defs": BASE, "allOf": [{"$ref": "#/$defs/base"}, TWO]}, '{"b": 2}', False),
    ({"$defs": BASE, "allOf": [{"$ref": "#/$defs/base"}, TWO]}, '{"a": 1, "c": 1}', False),
    ({"$defs": BASE, "$ref": "#/$defs/base"}, '{"a": 1, "c": 1}', False),
    ({"anyOf": [TWO, {"type": "null"}]}, '{"c": 1}', False),
    ({**TWO, "anyOf": [{"properties": {"c": {"type": "null"}}, "required": ["c"]}]}, '{"b": 1, "c": null}', True),
    ({**TWO, "anyOf": [{"properties": {"c": {"type": "null"}}, "required": ["c"]}]}, '{"c": null, "d": 1}', False),
    ({"$ref": "#"}, "[1]", True),
    ({"$id": "http://a.b/c", "$ref": "c.json", "$defs": {"c": {"$id": "c.json", "type": "null"}}}, "null", True),
    ({"$ref": "#here", "$defs": {"c": {"$anchor": "here", "type": "null"}}}, "null", True),
    ({"$ref": "#/definitions/a~1b%20c", "definitions": {"a/b c": {"type": "null"}}}, "null", True),
]


@pytest.mark.parametrize(("schema", "text", "right"), CASES)
def test_texts_that_a_schema_allows(schema: Schema, text: str, right: bool) -> None:
    assert matches(text, schema) == right


def test_objects_are_open_if_asked_for() -> None:
    assert matches('{"b": 1, "c": 2}', TWO, open_objects=True)
    assert not matches("{}", {**TWO, "required": ["a"]}, open_objects=True)


def test_white_space_is_bounded() -> None:
    """Random weights at a high temperature write much of it where they may."""
    m, tokenizer = system("bytes")
    constraint = Constraint(
        tokenizer, json_schema='{"type": "array", "items": {"const": 1}, "minItems": 8, "maxItems": 8}'
    )
    texts = generate_texts(m, tokenizer, ["the"] * 20, DRAWN.changed(temperature=3.0), constraint=constraint)
    assert all(json.loads(text) == [1] * 8 for text in texts)
    assert all(re.fullmatch(r"(?: |\n {0,32})?", gap) for text in texts for gap in re.split(r"[^ \n]", text))
    assert any("\n" in text for text in texts)
    assert any(" " in text for text in texts)


@pytest.mark.parametrize(
    ("schema", "dropped"),
    [
        ({"type": "array", "uniqueItems": True}, ["uniqueItems at #"]),
        ({"type": "array", "uniqueItems": False}, []),
        ({"properties": {"é": {"type": "string", "format": "a\nb"}}}, ["format a%0Ab at #/properties/%C3%A9"]),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, ["oneOf, which is read as anyOf"]),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, []),
        ({"not": {"type": "string"}, "if": {}, "then": {"const": 1}}, ["not at #", "if at #", "then at #"]),
        ({**TWO, "minProperties": 1}, ["minProperties at #"]),
        ({**TWO, "minProperties": 1, "required": ["a", "b"]}, []),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, ["$ref at #"]),
    ],
)
def test_what_is_not_enforced_is_named(schema: Schema, dropped: list[str]) -> None:
    assert list(Constraint(system("bytes")[1], json_schema=json.dumps(schema)).dropped) == dropped
    if dropped:
        with pytest.warns(UserWarning, match="cannot be enforced and are ignored: "):
            constraint_of(system("bytes")[1], None, schema)


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ({"$ref": "http://example.org/a.json"}, "its \\$ref 'http://example.org/a.json' at # has no target"),
        ({"items": {"$ref": "#/$defs/a"}}, "its \\$ref '#/\\$defs/a' at #/items has no target"),
        ({"$ref": 5}, "its \\$ref 5 at # has no target"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "requires itself within itself"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "requires itself within itself"),
        ({"allOf": [{"$ref": "#"}, {"type": "object"}]}, "requires itself within itself"),
        ({"type": "string", "pattern": "[a"}, "unclosed character class"),
    ],
)
def test_schemas_that_no_json_can_match_are_refused(schema: Schema, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Constraint(system("bytes")[1], json_schema=json.dumps(schema))


def test_a_rewritten_schema_is_one_again() -> None:
    """References to closed and to open forms of one definition do not meet."""
    leaf = {"type": "object", "properties": {"v": {"type": "null"}}}
    given = {
        "$defs": {"leaf": leaf},
        "properties": {"a": {"$ref": "#/$defs/leaf"}, "b": {"allOf": [{"$ref": "#/$defs/leaf"}, TWO]}},
    }
    found = rewrite(given, lambda _: True).schema
    jsonschema.Draft202012Validator.check_schema(found)
    validator = jsonschema.Draft202012Validator(found)
    assert validator.is_valid({"a": {"v": None}, "b": {"v": None, "a": 1}})
    assert not validator.is_valid({"a": {"v": None, "a": 1}})
    assert not validator.is_valid({"b": {"v": None, "c": 1}})


def many(count: int) -> Schema:
    return {"type": "object", "properties": {f"field_{i}": {"type": "null"} for i in range(count)}}


def test_hundreds_of_optional_properties_are_written() -> None:
    m, tokenizer = system("bytes")
    text = generate_text(m, tokenizer, "the", DRAWN, constraint=constraint_of(tokenizer, None, many(200)))
    jsonschema.validate(json.loads(text), {**many(200), "additionalProperties": False})


def test_too_many_properties_are_refused_before_a_text_begins() -> None:
    with pytest.raises(UserError, match="the JSON schema is too complex: "):
        Constraint(system("bytes")[1], json_schema=json.dumps(many(4000)))


@pytest.mark.parametrize("ngram", [None, 1])
def test_an_error_within_a_text_is_no_end(ngram: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a text passes after its start, where nothing tells in advance."""
    library = constrain._library()
    monkeypatch.setattr(
        constrain, "_limits", lambda _: library.LLParserLimits(max_items_in_row=100, verbose_errors=False)
    )
    m, tokenizer = system("bytes")
    constraint = Constraint(tokenizer, json_schema=json.dumps({"type": "array", "items": many(40), "minItems": 1}))
    look_up = Speculator(Speculation(num_tokens=4, ngram=ngram, adaptive=False)) if ngram else None
    with pytest.raises(UserError, match=r"the JSON schema is too complex: .*items"):
        generate_text(m, tokenizer, "[{[{[{", DRAWN, constraint=constraint, speculation=look_up)
    queue = RequestQueue(m, tokenizer, speculator=look_up)
    queue.submit(Request(tokenizer.encode("[{[{[{"), DRAWN, constraint=constraint))
    queue.submit(Request(tokenizer.encode("the"), DRAWN.changed(max_new_tokens=3)))
    pieces = []
    while not queue.idle:
        pieces += queue.step()
    ends = {piece.number: piece for piece in pieces if piece.finished}
    assert ends[0].finished == "refused"
    assert "too complex" in ends[0].error
    assert ends[1].finished == "length"
