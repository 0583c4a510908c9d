"""The printed JSON schema accepts what a spec accepts, and refuses what an editor can see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from tests.spec.strategies import models, parts, recipes, slots

from qkv.spec.files.plain import plain
from qkv.spec.files.reader import read_yaml
from qkv.spec.files.schema import json_schema
from qkv.spec.files.shipped import shipped
from qkv.spec.model import Model
from qkv.spec.processors import Processor
from qkv.spec.recipe import Recipe

RECIPE = jsonschema.Draft202012Validator(json_schema(Recipe))
MODEL = jsonschema.Draft202012Validator(json_schema(Model))
RECIPES = list(shipped().values())


def complaints(validator: Any, data: Any) -> list[str]:
    return [error.message for error in validator.iter_errors(data)]


@pytest.mark.parametrize("validator", [RECIPE, MODEL], ids=["recipe", "model"])
def test_it_is_a_json_schema(validator: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(validator.schema)
    assert validator.schema["additionalProperties"] is False


def test_every_slot_and_every_part_is_in_it() -> None:
    definitions = RECIPE.schema["$defs"]
    assert {slot.__name__ for slot in slots() if slot is not Processor} <= definitions.keys()
    for part in parts():
        if issubclass(part, Processor):  # stored with a run, not written in a recipe
            continue
        slot = next(slot for slot in slots() if issubclass(part, slot))
        kinds = [
            choice["properties"]["kind"]["const"]
            for choice in definitions[slot.__name__]["anyOf"]
            if "properties" in choice
        ]
        assert kinds.count(part.kind) == 1


@settings(max_examples=50)
@given(recipes())
def test_every_recipe_conforms(recipe: Recipe) -> None:
    assert complaints(RECIPE, plain(recipe)) == []
    assert complaints(RECIPE, recipe.to_dict()) == []


@given(models())
def test_every_model_conforms(model: Model) -> None:
    assert complaints(MODEL, plain(model)) == []


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_recipe_that_is_shipped_conforms(path: Path) -> None:
    assert complaints(RECIPE, read_yaml(path.read_text(encoding="utf-8"))[0]) == []


def defaults(node: Any, root: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Every schema of a key that has a default, and that default."""
    if isinstance(node, list):
        return [found for item in node for found in defaults(item, root)]
    if not isinstance(node, dict):
        return []
    own = [({**node, "$defs": root["$defs"]}, node["default"])] if "default" in node else []
    return own + [found for key, item in node.items() if key != "default" for found in defaults(item, root)]


def test_every_default_conforms_to_its_own_schema() -> None:
    found = defaults(RECIPE.schema, RECIPE.schema)
    assert len(found) > 50
    for schema, default in found:
        assert complaints(jsonschema.Draft202012Validator(schema), default) == []


@pytest.mark.parametrize(
    "data",
    [
        {"data": "x"},
        {"data": {"source": "x", "tokenizer": "bpe(512)"}},
        {"data": "x", "model": {"norm": " rms_norm ( eps=1e-3 ) "}},
        {
            "data": "x",
            "model": {
                "blocks": [
                    {"branches": ["gru", {"kind": "attention", "mask": {"kind": "all_of", "masks": ["causal"]}}]}
                ]
            },
        },
    ],
)
def test_short_forms_conform(data: Any) -> None:
    Recipe.parse(data)
    assert complaints(RECIPE, data) == []


@pytest.mark.parametrize(
    "data",
    [
        {"data": 3},
        {"data": ""},
        {"data": "x", "modle": {}},
        {"data": "x", "model": {"width": "wide"}},
        {"data": "x", "model": {"width": 0}},
        {"data": "x", "model": {"norm": "rms"}},
        {"data": "x", "model": {"norm": {"kind": "rms"}}},
        {"data": "x", "model": {"norm": {"eps": 1e-3}}},
        {"data": "x", "model": {"norm": {"kind": "rms_norm", "bias": True}}},
        {"data": "x", "model": {"encoder": {"blocks": []}}},
        {"data": "x", "model": {"blocks": [{"order": "before"}]}},
        {"data": "x", "model": {"blocks": [{"branches": ["attenton(4)"]}]}},
        {"data": "x", "model": {"blocks": [{"branches": [{"kind": "attention", "mask": {"kind": "window"}}]}]}},
        {"data": {"source": "x", "tokenizer": "file"}},
    ],
)
def test_what_an_editor_can_see_is_refused(data: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  every refusal is a SpecError; the point is that both refuse
        Recipe.parse(data)
    assert complaints(RECIPE, data)
