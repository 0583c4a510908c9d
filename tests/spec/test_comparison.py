"""Specs of comparisons: reading, entries and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qkv.spec.errors import SpecError
from qkv.spec.files.yaml_io import dump, write_spec
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.comparison import Comparison, base_recipe, entry_of, entry_recipe, read_comparison
from qkv.system.errors import UserError

BASE = Recipe.parse(
    {
        "task": "sorting",
        "model": {
            "width": 16,
            "num_layers": 2,
            "head": "tokens",
            "blocks": [{"branches": ["attention(2)", "feed_forward(24)"]}],
        },
    }
)


def comparison(**changes: Any) -> Comparison:
    return Comparison.parse({"recipe": "sorting", "entries": {"a": [], "b": ["model.width=24"]}, **changes})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("plain", ("plain", ())),
        ("plain:", ("plain", ())),
        ("a: x=1, y=2", ("a", ("x=1", "y=2"))),
        (
            "a: blocks.*.mixer=attention(4, mask='causal, full'), model.norms=[a, b],c={d: 1, e: 2}",
            ("a", ("blocks.*.mixer=attention(4, mask='causal, full')", "model.norms=[a, b]", "c={d: 1, e: 2}")),
        ),
    ],
)
def test_an_entry_is_a_name_and_changes(text: str, found: tuple[str, tuple[str, ...]]) -> None:
    assert entry_of(text) == found


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (": x=1", "has not the form"),
        ("x=1: y", "has not the form"),
        ("a: x=1,, y=2", "an empty change between two commas"),
    ],
)
def test_a_text_that_is_no_entry(text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        entry_of(text)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"entries": {"a b": []}}, "entries: 'a b' cannot name a folder"),
        ({"entries": {}}, "entries: "),
        ({"baseline": "c"}, "baseline: there is no entry 'c'"),
        ({"knobs": {"bb": "model.width"}}, "knobs.bb: there is no entry 'bb'"),
        ({"seeds": [1, 1]}, "seeds: 1 is given twice"),
        ({"rates": [1, 1.0000001]}, "rates: 1 is given twice"),
        ({"rates": [0]}, r"rates.0: 0 given, but it should be greater than 0"),
        ({"equal": "money"}, "equal: 'money' given"),
        ({"entires": {}}, "entires: unknown key; did you mean 'entries'"),
    ],
)
def test_a_wrong_comparison_gets_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        comparison(**changes)


def test_a_file_is_read_with_changes_and_its_recipe_is_found_beside_it(tmp_path: Path) -> None:
    write_spec(tmp_path / "base.yaml", BASE)
    (tmp_path / "c.yaml").write_text(
        "recipe: base.yaml\nentries: {a: [], b: [width=24]}\noverrides: [training.steps=3]\n"
    )
    found = read_comparison(tmp_path / "c.yaml", {"seeds": [5], "overrides": ["training.seed=4"]}.items())
    assert found.seeds == (5,)
    base = base_recipe(found)
    assert (base.model, base.training.steps, base.training.seed) == (BASE.model, 3, 4)
    write_spec(tmp_path / "again.yaml", found)
    assert read_comparison(tmp_path / "again.yaml") == found
    with pytest.raises(SpecError, match=r"base.yaml: this file is no comparison"):
        read_comparison(tmp_path / "base.yaml")


def test_paths_in_blocks_mean_layers_and_keep_what_both_kinds_share() -> None:
    changed = entry_recipe(BASE, "gru", ["blocks.1.mixer=linear_attention"]).model.layers
    assert [block.branches[0].kind for block in changed] == ["attention", "linear_attention"]
    assert changed[1].branches[0].num_heads == 2  # type: ignore[attr-defined]


def test_paths_that_set_the_number_of_blocks_mean_those_listed() -> None:
    found = entry_recipe(BASE, "deep", ["num_layers=5", "blocks.0.mixer=gru"]).model
    assert [block.branches[0].kind for block in found.layers] == ["gru"] * 5


def test_an_error_names_the_entry_and_the_override() -> None:
    with pytest.raises(SpecError, match=r"entry 'wide': override 'model.widht=24': there is no 'widht'"):
        entry_recipe(BASE, "wide", ["model.widht=24"])


def test_a_recipe_whose_models_compete_is_refused(tmp_path: Path) -> None:
    text = dump(BASE.changed(candidates={"x": {"model.width": 24}}))
    (tmp_path / "base.yaml").write_text(text)
    with pytest.raises(UserError, match=r"candidates compete in heats.*candidates=\{\}"):
        base_recipe(comparison(recipe=str(tmp_path / "base.yaml")))
