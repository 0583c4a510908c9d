"""``qkv schema``."""

from __future__ import annotations

import json

from tests.cli.conftest import Call

from qkv.spec.files.schema import json_schema
from qkv.spec.model import Model
from qkv.spec.recipe import Recipe


def test_it_prints_the_schema_of_recipes_models_or_comparisons(qkv: Call) -> None:
    assert json.loads(qkv("schema").out) == json.loads(json.dumps(json_schema(Recipe)))
    assert json.loads(qkv("schema", "recipe").out)["title"] == "Recipe"
    assert json.loads(qkv("schema", "model").out) == json.loads(json.dumps(json_schema(Model)))
    assert json.loads(qkv("schema", "comparison").out)["title"] == "Comparison"
