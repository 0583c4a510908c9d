"""Structured answers through the official client: whatever random weights write has the form that was asked for."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest
from openai import BadRequestError
from tests.generation.test_constrain import WIDE
from tests.serving.conftest import Running, serving

from qkv.generation.logits.constrain import Constraint
from qkv.runs.run import Run
from qkv.serving.limits import COMPILED

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["the", "fox"]}, "maxItems": 2},
    },
    "required": ["name", "size"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": SCHEMA}}
ASKED: dict[str, Any] = {"model": "bytes", "max_tokens": 200, "temperature": 1.2, "seed": 3}


def completed(server: Running, **options: Any) -> tuple[str, str]:
    """Text and reason of its end."""
    made = server.client().completions.create(**{**ASKED, "prompt": "the", "extra_body": options})
    return made.choices[0].text, made.choices[0].finish_reason


def test_completions_and_chats_are_json_of_the_schema(server: Running) -> None:
    client = server.client()
    for seed in range(4):
        text, finished = completed(server, response_format=FORMAT, seed=seed)
        jsonschema.validate(json.loads(text), SCHEMA)
        assert finished == "stop"
    asked: dict[str, Any] = {**ASKED, "messages": [{"role": "user", "content": "a"}], "response_format": FORMAT}
    whole = client.chat.completions.create(**asked)
    jsonschema.validate(json.loads(whole.choices[0].message.content or ""), SCHEMA)
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("options", "expression"),
    [
        ({"guided_regex": "[a-f]{3}-[0-9]{2}"}, "[a-f]{3}-[0-9]{2}"),
        ({"guided_choice": ["a.b*c", "x|y", "[1] {2} \\d"]}, r"a\.b\*c|x\|y|\[1\] \{2\} \\d"),
        ({"guided_json": {"enum": [12, None]}}, "12|null"),
        ({"guided_json": '{"const": "é"}'}, '"(é|\\\\u00e9)"'),
        ({"structured_outputs": {"regex": "(fox|dog)s?"}}, "(fox|dog)s?"),
        ({"structured_outputs": {"choice": ["fox"]}}, "fox"),
        ({"structured_outputs": {"json": {"type": "boolean"}}}, "true|false"),
    ],
)
def test_names_of_other_servers_are_known(server: Running, options: dict[str, Any], expression: str) -> None:
    for seed in range(3):
        text, finished = completed(server, seed=seed, **options)
        assert re.fullmatch(expression, text)
        assert finished == "stop"


@pytest.mark.parametrize(
    "options", [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}]
)
def test_any_object_and_a_text_that_is_cut_off(server: Running, options: dict[str, Any]) -> None:
    """The maximum of tokens ends a text that is not complete, as any other."""
    for seed in range(3):
        text, finished = completed(server, seed=seed, max_tokens=30, **options)
        assert text.startswith("{")
        assert finished in ("stop", "length")
        if finished == "stop":
            assert isinstance(json.loads(text), dict)
    assert completed(server, guided_json={"const": "abcdefgh"}, max_tokens=2)[1] == "length"


def test_texts_of_several_forms_beside_each_other(server: Running) -> None:
    """In one batch, with the texts that each gets alone; a schema that cannot be compiled holds up nobody."""
    options: list[dict[str, Any]] = [
        {"guided_regex": "[a-f]{30}"},
        {},
        {"response_format": FORMAT},
        {"guided_json": json.loads(WIDE)},
        {"max_tokens": 60},
        {"guided_choice": ["the fox", "the dog"]},
    ]
    alone = [completed(server, **each) for each in options if each != options[3]]
    with ThreadPoolExecutor(len(options)) as pool:
        found = [pool.submit(completed, server, **each) for each in options]
    with pytest.raises(BadRequestError, match="the JSON schema cannot be used"):
        found[3].result()
    assert [each.result() for place, each in enumerate(found) if place != 3] == alone


def test_what_is_not_enforced_is_named_in_a_header(server: Running) -> None:
    loose = {"type": "array", "items": {"type": "null"}, "maxItems": 2, "uniqueItems": True, "not": {"const": [None]}}
    create = server.client().completions.with_raw_response.create
    for stream in (False, True):
        answered = create(**ASKED, prompt="the", stream=stream, extra_body={"guided_json": loose})
        assert answered.headers["x-qkv-not-enforced"] == "uniqueItems at #, not at #"
    assert (
        "x-qkv-not-enforced" not in create(**ASKED, prompt="the", extra_body={"guided_json": {"type": "null"}}).headers
    )


def test_a_schema_that_is_too_complex_within_a_text_is_no_end(server: Running) -> None:
    wide = {"type": "object", "properties": {f"field_{i}": {"type": "null"} for i in range(4000)}}
    for schema in (wide, {"type": "array", "items": wide, "minItems": 1}):
        with pytest.raises(BadRequestError, match="the JSON schema is too complex"):
            completed(server, guided_json=schema)


def test_a_compiled_schema_is_kept_and_others_are_dropped(
    runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []

    def compile_constraint(*args: Any, **form: Any) -> Constraint:
        compiled.append(form)
        return Constraint(*args, **form)

    monkeypatch.setattr("qkv.serving.requests.structure.Constraint", compile_constraint)
    with serving({"bytes": runs["bytes"]}) as server:
        completed(server, max_tokens=1)  # after the warm-up, which compiles a pattern
        compiled.clear()
        for _ in range(2):
            completed(server, guided_json=SCHEMA, max_tokens=1)
        assert len(compiled) == 1
        for number in range(COMPILED):
            completed(server, guided_regex=f"{number}", max_tokens=1)
        assert len(compiled) == 1 + COMPILED
        completed(server, guided_regex="1", max_tokens=1)
        assert len(compiled) == 1 + COMPILED
        completed(server, guided_json=SCHEMA, max_tokens=1)
        assert len(compiled) == 2 + COMPILED


def test_a_constraint_that_cannot_be_met_is_the_fault_of_the_request(server: Running) -> None:
    asked = {"model": "rope", "prompt": "the", "max_tokens": 9}
    for stream in (False, True):
        with pytest.raises(
            Exception, match="no token of the tokenizer can continue the text as the regular expression demands"
        ):
            list(server.client().completions.create(**asked, stream=stream, extra_body={"guided_regex": "theé"}))
