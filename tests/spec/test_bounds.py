"""Integers of every spec have bounds, floats are finite, and a message clips what it quotes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qkv.spec.base import LARGEST
from qkv.spec.errors import SpecError
from qkv.spec.files.reader import read_json, read_yaml
from qkv.spec.files.schema import json_schema
from qkv.spec.files.yaml_io import read_recipe, read_spec
from qkv.spec.generation import Generation
from qkv.spec.masks import Mask
from qkv.spec.model import Block, Model
from qkv.spec.parts import Rope
from qkv.spec.recipe import Recipe
from qkv.system.errors import MOST_OF_A_SENTENCE, UserError, quoted

HUGE = "0x" + "f" * 5000


def integers(node: Any) -> Iterator[dict[str, Any]]:
    """Every integer that a schema describes."""
    if isinstance(node, dict):
        if node.get("type") == "integer":
            yield node
        for key, inner in node.items():
            yield from integers(inner) if key not in ("default", "examples") else ()
    if isinstance(node, list):
        for inner in node:
            yield from integers(inner)


@pytest.mark.parametrize("top", [Recipe, Model, Generation])
def test_every_integer_has_two_bounds(top: Any) -> None:
    found = list(integers(json_schema(top)))
    assert len(found) >= 5
    for node in found:
        if "enum" in node:
            continue
        assert {"maximum", "exclusiveMaximum"} & node.keys(), node
        assert {"minimum", "exclusiveMinimum"} & node.keys(), node


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"width": 100_000_001}, "width: 100000001 given, but it should be less than or equal to 1000000"),
        ({"num_layers": 100_000_000}, "num_layers: 100000000 given, but it should be less than or equal to 10000"),
        ({"context_length": LARGEST + 1}, "context_length: 2147483648 given"),
        ({"width": 10**5000}, "width: an integer of 16,610 bits given"),
        (
            {"blocks": [{"branches": ["attention(num_heads=3)"]}], "width": 1_000_000},
            "3 heads do not divide the width 1000000; heads",
        ),
        (
            {"latents": {"rounds": 1000, "num_layers": 11}, "blocks": []},
            "latents.rounds: 1000 rounds of 11 layers are more than 10000",
        ),
        ({"blocks": [{"branches": ["lsh_attention(num_buckets=[65536, 65536])"]}]}, "more than 2147483647 buckets"),
        (
            {"frontend": {"kind": "text", "positions": {"kind": "axial", "shape": [65536, 65536]}}},
            "more than 2147483647 positions",
        ),
        ({"init_std": float("nan")}, "init_std: nan given, but it should be a finite number"),
        ({"init_std": float("inf")}, "init_std: inf given, but it should be a finite number"),
    ],
)
def test_a_number_out_of_bounds_is_refused(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        Model.parse(data)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "data", [{"width": 12_288, "num_layers": 96}, {"num_layers": 2500}, {"context_length": 1_000_000_000}]
)
def test_published_sizes_are_within_them(data: dict[str, Any]) -> None:
    assert Model.parse(data).depth == data.get("num_layers", 1)


def test_a_mask_and_a_pattern_are_counted_without_being_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="size: 99999999999999999999 given"):
        Mask.parse("window(99999999999999999999)")
    monkeypatch.setattr(Model, "layers", property(lambda self: pytest.fail("the layers were listed")))
    deep = Model.parse({"num_layers": 10_000, "blocks": [{}, {}]})
    assert (deep.depth, deep.causal, deep.reads_memory) == (10_000, True, False)


@pytest.mark.parametrize(
    "text",
    [
        f"data: {HUGE}",
        "data: " + "9" * 5000,
        "seed: 9223372036854775808",
        "lr: .inf",
        "lr: -.Inf",
        "lr: .nan",
        "lr: 1e999",
    ],
)
def test_a_file_holds_no_number_that_nothing_can_be(text: str) -> None:
    with pytest.raises(SpecError, match=r"spec\.yaml:1: .*(64 bits|not a finite number)") as caught:
        read_yaml(text, "spec.yaml")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 30])
def test_nor_does_one_of_json(word: str) -> None:
    with pytest.raises(SpecError, match=r"spec\.json.* (finite number|64 bits)"):
        read_json(f'{{"lr": {word}}}', "spec.json")


def test_an_override_is_no_way_around(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text("width: 64\n")
    for change, sentence in ((f"width={HUGE}", "an integer of 20,000 bits"), ("init_std=.inf", "a finite number")):
        with pytest.raises(UserError, match=sentence):
            read_spec(path, [change])
    path.write_text(f"data: {HUGE}\nmodel: {{}}\n")
    with pytest.raises(UserError, match="needs more than 64 bits"):
        read_recipe(path)


def test_a_short_form_nested_too_deeply_is_refused() -> None:
    with pytest.raises(SpecError):
        Mask.parse("-" * 390 + "1")


def test_what_is_quoted_is_clipped_in_its_middle() -> None:
    assert quoted("a" * 58) == repr("a" * 58)
    assert quoted("a" * 100) == "'" + "a" * 37 + "..." + "a" * 18 + "'"
    assert quoted(2**20_000) == "an integer of 20,001 bits"
    assert quoted([2**20_000]) == "a list"


def test_a_message_is_short_whatever_it_quotes() -> None:
    assert len(str(UserError("x" * 10_000_000))) < 450
    assert len(str(UserError("x y " * 10_000))) <= MOST_OF_A_SENTENCE
    with pytest.raises(SpecError) as caught:
        Block.parse({"k" * 100_000: 1})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("scaling", "path"),
    [
        ({"kind": "yarn", "factor": 2.0, "original_length": 8, "beta_slow": 0.0}, "beta_slow"),
        ({"kind": "yarn", "factor": 2.0, "original_length": 8, "beta_fast": -1.0}, "beta_fast"),
        ({"kind": "llama3", "factor": 2.0, "original_length": 8, "low_frequency_factor": 4.0}, "high_frequency_factor"),
    ],
)
def test_a_scaling_that_would_divide_by_zero_is_refused(scaling: dict[str, object], path: str) -> None:
    with pytest.raises(UserError, match=path):
        Rope.parse({"scaling": scaling})
