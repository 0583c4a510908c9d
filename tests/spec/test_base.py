"""Specs in Python: frozen, strict, joined by parts of a user's own, and clear about what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.spec.strategies import parts, recipes, valid

from qkv.spec.base import Part, with_article, words
from qkv.spec.branches import (
    Attention,
    Branch,
    CausalConvolution,
    FeedForward,
    GatedFeedForward,
    TokenShift,
)
from qkv.spec.errors import Problem, SpecError
from qkv.spec.files.plain import plain
from qkv.spec.masks import Full
from qkv.spec.mixers.linear_attention import LinearAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import Alibi, LayerNorm, Norm, NTKScaling, RMSNorm, Rope
from qkv.spec.recipe import Recipe
from qkv.spec.training import AdamW, Muon
from qkv.system.errors import UserError, nearest


def test_specs_are_frozen_and_compared_by_value() -> None:
    assert Model(width=64) == Model.parse({"width": 64}) != Model()
    assert hash(RMSNorm()) == hash(RMSNorm())
    with pytest.raises(ValidationError, match="frozen"):
        Model().width = 3


def test_changed_copies_are_validated() -> None:
    assert Model().changed(width=64) == Model(width=64)
    with pytest.raises(SpecError, match="width: 0 given, but it should be greater than 0"):
        Model().changed(width=0)


@pytest.mark.parametrize("part", parts(), ids=lambda p: p.__name__)
@settings(max_examples=8)
@given(data=st.data())
def test_every_part_survives_plain_data(part: type[Part], data: st.DataObject) -> None:
    spec = data.draw(valid(part))
    slot = next(c for c in part.__mro__ if Part in c.__bases__)
    assert slot.parse(spec.to_dict()) == spec
    assert slot.parse(plain(spec)) == spec
    assert spec.changed() == spec


def test_a_part_of_a_user_joins_its_slot_by_being_defined() -> None:
    class PowerNorm(Norm, kind="power_norm_of_a_test"):
        """x / mean(|x|^p)^(1/p)."""

        power: float = 2.0

    try:
        model = Model.parse({"norm": "power_norm_of_a_test(3.0)"})
        assert model.norm == PowerNorm(power=3.0)
        assert Model.parse(plain(model)) == model
        with pytest.raises(TypeError, match="the kind 'power_norm_of_a_test' is taken by"):
            type("Other", (Norm,), {"__module__": __name__, "__qualname__": "Other"}, kind="power_norm_of_a_test")
    finally:
        Norm._kinds.pop("power_norm_of_a_test")


SHORT: list[tuple[type[Part], str, Any]] = [
    (Norm, "rms_norm", RMSNorm()),
    (Norm, "rms_norm(eps=1e-4, weight=false)", RMSNorm(eps=1e-4, weight=False)),
    (Branch, "attention(8, num_kv_heads=2, relative=rope(500.0, scaling=ntk(2)))", None),
    (Branch, "attention(4, mask=full)", Attention(mask=Full())),
    (Branch, "feed_forward(activation='relu')", FeedForward(activation="relu")),
    (Branch, "feed_forward(activation=relu, hidden=null)", FeedForward(activation="relu")),
]


@pytest.mark.parametrize(("slot", "text", "part"), SHORT, ids=[text for _, text, _ in SHORT])
def test_short_forms(slot: type[Part], text: str, part: Any) -> None:
    nested = Attention(num_heads=8, num_kv_heads=2, relative=Rope(base=500.0, scaling=NTKScaling(factor=2)))
    assert slot.parse(text) == (nested if part is None else part)


def test_a_field_of_one_certain_kind_needs_no_kind() -> None:
    spec = Muon(others=AdamW(lr=0.5))
    assert plain(spec)["others"] == {"lr": 0.5, "beta1": 0.9, "beta2": 0.99, "eps": 1e-08, "weight_decay": 0.1}


WRONG = {
    "strict integers": ({"width": "64"}, "width: '64' given, but it should be a valid integer"),
    "strict numbers": ({"init_std": True}, "init_std: True given, but it should be a valid number"),
    "infinity": ({"init_std": float("inf")}, "init_std: inf given, but it should be a finite number"),
    "heads": (
        {"width": 20, "blocks": [{"branches": ["attention(8)"]}]},
        "8 heads do not divide the width 20; heads that do: 1, 2, 4, 5, 10, 20",
    ),
    "shared heads": (
        {"blocks": [{"branches": ["attention(4, num_kv_heads=3)"]}]},
        "3 K/V heads cannot be shared evenly by 4 query heads",
    ),
    "ALiBi": (
        {"blocks": [{"branches": ["attention(mask=full, relative=alibi)"]}]},
        "alibi is defined for causal attention",
    ),
    "odd RoPE": (
        {"width": 12, "blocks": [{"branches": ["attention(4, relative=rope)"]}]},
        "RoPE rotates pairs of features, but 3 of a head",
    ),
    "groups": ({"width": 9, "blocks": [{"branches": ["token_shift(2)"]}]}, "2 groups do not divide the width 9"),
    "layers": (
        {"num_layers": 1, "blocks": [{}, {}]},
        "num_layers: 1 layers are fewer than the 2 blocks of the pattern",
    ),
    "concatenation": (
        {"width": 9, "frontend": "text(join=concatenate)", "blocks": [{"branches": ["feed_forward"]}]},
        "concatenated positions take half of the width, but 9 is odd",
    ),
    "no blocks": ({"encoder": {"blocks": []}}, "encoder.blocks: 0 elements given, but the list should have at least 1"),
    "layers of nothing": ({"num_layers": 2, "blocks": []}, "num_layers: 2 layers given, but no block is listed"),
    "no list": ({"blocks": "gru"}, "blocks: 'gru' given, but it should be a list"),
    "no mapping": ({"blocks": ["gru"]}, "blocks.0: 'gru' given, but it should be a mapping of keys"),
    "a literal": (
        {"blocks": [{"order": "before"}]},
        "blocks.0.order: 'before' given, but it should be 'pre', 'post', 'sandwich', 'res_post' or 'parallel'",
    ),
    "a number as part": (
        {"norm": 3},
        "norm: 3 is not a norm; allowed: batch_norm, grid_norm, layer_norm, none, rms_norm",
    ),
    "two problems": (
        {"width": 0, "num_layers": 0},
        "width: 0 given, but it should be greater than 0 (and 1 more problem)",
    ),
    "three problems": ({"width": 0, "num_layers": 0, "a": 1}, "(and 2 more problems)"),
    "a long value": ({"width": "w" * 100}, "width: '" + "w" * 37 + "..." + "w" * 18 + "' given"),
}


@pytest.mark.parametrize(("data", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_has_a_path_and_a_sentence(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        Model.parse(data)
    assert sentence in str(caught.value)
    assert isinstance(caught.value, UserError)
    assert isinstance(caught.value, ValueError)


def test_an_error_says_source_line_and_path() -> None:
    problem = Problem(("a", 0, "b"), "no")
    assert str(SpecError([problem])) == "a.0.b: no"
    assert str(SpecError([problem], "f.yaml")) == "f.yaml: a.0.b: no"
    assert str(SpecError([problem], "f.yaml", {("a",): 3})) == "f.yaml:3: a.0.b: no"
    assert str(SpecError([problem], "f.yaml", {("a",): 3, ("a", 0): 5})) == "f.yaml:5: a.0.b: no"
    assert str(SpecError([Problem((), "no")], "f.yaml")) == "f.yaml: no"


def test_the_nearest_name_or_all_of_them() -> None:
    assert nearest("widht", ["width", "depth"]) == "did you mean 'width'?"
    assert nearest("x", ["width", "depth"]) == "allowed: depth, width"


def test_words_and_articles() -> None:
    assert [with_article(words(name)) for name in ("FeedForward", "Optimizer")] == ["a feed forward", "an optimizer"]


def test_derived_properties() -> None:
    model = Model(num_layers=5, blocks=(Block(branches=(Attention(),)), Block(branches=(FeedForward(),))))
    assert [block.branches[0].kind for block in model.layers] == ["attention", "feed_forward"] * 2 + ["attention"]
    assert (model.causal, model.first_not_decoding(), model.vocab_size) == (True, (), None)
    bidirectional = Model(
        blocks=(Block(), Block(branches=(FeedForward(), Attention(mask=Full())))), frontend=Text(vocab_size=7)
    )
    assert (bidirectional.causal, bidirectional.first_not_decoding(), bidirectional.vocab_size) == (
        False,
        ("blocks", 1, "branches", 1),
        7,
    )
    assert Attention(num_heads=8, num_kv_heads=2).kv_heads == 2
    assert Attention(num_heads=8).dims(64) == (8, 8)
    assert Attention(num_heads=8, head_dim=6, value_dim=10).dims(64) == (6, 10)
    assert (FeedForward().hidden_at(48), FeedForward(hidden=5).hidden_at(48)) == (192, 5)
    assert (GatedFeedForward().hidden_at(128), GatedFeedForward().hidden_at(96)) == (352, 256)
    assert CausalConvolution(kernel_size=4, dilation=3).tail == 9
    assert [part().mixes for part in (LinearAttention, TokenShift, FeedForward, GatedFeedForward)] == [
        True,
        True,
        False,
        False,
    ]


def test_a_task_that_decodes_refuses_a_model_that_does_not() -> None:
    with pytest.raises(
        SpecError, match=r"model\.blocks\.0\.branches\.0: this branch sees later positions, but the task 'next_token'"
    ):
        Recipe.parse({"data": "x", "model": {"blocks": [{"branches": ["attention(mask=full)"]}]}})


JUNK = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1e400,
        float("nan"),
        "",
        "x",
        "window(",
        [],
        [None],
        {},
        {"kind": "x"},
        {"kind": [1]},
        {"x": {}},
    ]
)


@settings(max_examples=75)
@given(recipes(), st.data())
def test_junk_anywhere_is_refused_with_a_sentence_or_read(recipe: Recipe, data: st.DataObject) -> None:
    tree: Any = plain(recipe)
    here = tree
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = data.draw(st.sampled_from(keys))
        if not (isinstance(here[key], (dict, list)) and here[key]) or data.draw(st.booleans()):
            here[key] = data.draw(JUNK)
            break
        here = here[key]
    error: Any = None
    try:
        Recipe.parse(tree)
    except SpecError as caught:
        error = caught
    assert error is None or str(error)


def test_alibi_is_a_part_of_causal_attention() -> None:
    assert Attention(relative=Alibi()).causal
    assert LayerNorm().kind == "layer_norm"
