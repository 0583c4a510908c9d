"""Dotted overrides: what a path selects, how a value is read, and what is said when nothing matches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spec.strategies import recipes

from qkv.spec.branches import GRU, Attention, FeedForward, GatedFeedForward
from qkv.spec.data import Data
from qkv.spec.errors import SpecError
from qkv.spec.files.overrides import Assignment, apply, assignments, measured, override
from qkv.spec.files.plain import plain
from qkv.spec.masks import Causal, Window
from qkv.spec.mixers.linear_attention import LinearAttention
from qkv.spec.mixers.neighbours import MONet
from qkv.spec.model import Block, Model
from qkv.spec.parts import LinearScaling, RMSNorm, Rope
from qkv.spec.recipe import Recipe

HYBRID: dict[str, Any] = {
    "data": "tinyshakespeare",
    "model": {
        "blocks": [
            {"branches": ["attention(4, mask=causal & window(16))", "feed_forward"]},
            {"branches": ["gru", {"kind": "gated_feed_forward", "dropout": 0.5}]},
            {"branches": ["linear_attention", "feed_forward(hidden=64)"], "norm": "rms_norm"},
        ]
    },
}


def changed(*overrides: str, data: dict[str, Any] = HYBRID) -> Recipe:
    return Recipe.parse(apply(data, assignments(overrides), Recipe)[0])


def branches(recipe: Recipe) -> list[Any]:
    return [branch for block in recipe.model.blocks for branch in block.branches]


def test_a_name_that_meets_a_list_goes_to_every_element_that_has_it() -> None:
    assert {block.norm for block in changed("model.blocks.norm=rms_norm(eps=1e-4)").model.blocks} == {RMSNorm(eps=1e-4)}
    widened = branches(changed("model.blocks.branches.num_heads=8"))
    assert [getattr(branch, "num_heads", None) for branch in widened] == [8, None, None, None, 8, None]


def test_a_star_is_every_element_and_an_integer_is_one() -> None:
    assert changed("model.blocks.*.norm=rms_norm") == changed("model.blocks.norm=rms_norm")
    assert [b.order for b in changed("model.blocks.1.order=post").model.blocks] == ["pre", "post", "pre"]
    assert [b.order for b in changed("model.blocks.-1.order=post").model.blocks] == ["pre", "pre", "post"]
    assert changed("model.blocks.0.branches.1=gated_feed_forward(hidden=512)").model.blocks[0].branches[
        1
    ] == GatedFeedForward(hidden=512)


def test_a_mixer_that_may_be_position_wise_is_a_mixer() -> None:
    """``mixes`` of a MONet layer depends on its fields."""
    blocks = [{"branches": ["monet(hidden=8)", "feed_forward"]}]
    recipe = Recipe.parse({"task": "sorting", "model": {"blocks": blocks, "head": "tokens"}})
    assert override(recipe, ["model.blocks.mixer.hidden=16"]).model.blocks[0].branches[0] == MONet(hidden=16)
    assert override(recipe, ["model.blocks.feed_forward.hidden=16"]).model.blocks[0].branches[0] == MONet(hidden=8)


def test_mixer_and_feed_forward_tell_branches_apart() -> None:
    replaced = branches(changed("model.blocks.mixer=gru"))
    assert [type(branch) for branch in replaced] == [GRU, FeedForward, GRU, GatedFeedForward, GRU, FeedForward]
    dropped = branches(changed("model.blocks.feed_forward.dropout=0.25"))
    assert [getattr(branch, "dropout", None) for branch in dropped] == [0.0, 0.25, None, 0.25, None, 0.25]
    assert changed("model.blocks.branches.mixer=gru") == changed("model.blocks.mixer=gru")


def test_a_kind_selects_its_parts() -> None:
    assert branches(changed("model.blocks.gru.hidden=16"))[2] == GRU(hidden=16)
    assert branches(changed("model.blocks.gated_feed_forward.hidden=96"))[3] == GatedFeedForward(hidden=96, dropout=0.5)
    assert branches(changed("model.blocks.mixer.mask.window.size=3"))[0].mask == Causal() & Window(size=3)


def test_a_part_in_short_form_is_opened() -> None:
    assert branches(changed("model.blocks.0.mixer.num_kv_heads=2"))[0] == Attention(
        num_kv_heads=2, mask=Causal() & Window(size=16)
    )
    assert branches(changed("model.blocks.2.feed_forward.activation=relu"))[5] == FeedForward(
        hidden=64, activation="relu"
    )
    assert changed("model.blocks.2.norm.eps=1e-3").model.blocks[2].norm == RMSNorm(eps=1e-3)


def test_a_default_is_written_out_where_something_below_it_is_set() -> None:
    recipe = changed("model.blocks.mixer.num_heads=2", "training.optimizer.lr=3e-4", data={"data": "x"})
    expected = Model(blocks=(Block(branches=(Attention(num_heads=2), FeedForward())),))
    assert recipe.model == expected
    assert recipe.training == Recipe(data=Data(source="x")).training.changed(
        optimizer=recipe.training.optimizer.changed(lr=3e-4)
    )


def test_a_lone_source_is_opened() -> None:
    assert changed("data.tokenizer=bpe(512)").data == Data.parse({"source": "tinyshakespeare", "tokenizer": "bpe(512)"})
    assert changed("data.source=other").data.source == "other"
    assert changed("data.source=other", data={}).data.source == "other"
    assert changed("data=other").data.source == "other"


def test_setting_the_kind_replaces_the_part() -> None:
    assert changed("model.norm.kind=rms_norm").model.norm == RMSNorm()
    assert changed("model.norm=rms_norm", "model.norm.eps=1e-3").model.norm == RMSNorm(eps=1e-3)


def test_later_overrides_win() -> None:
    assert changed("model.width=64", "model.width=32").model.width == 32
    assert changed("model.norm.eps=1", "model.norm=rms_norm").model.norm == RMSNorm()


def test_a_part_that_was_unset_is_set_whole_and_then_changed() -> None:
    rope = changed("model.blocks.attention.relative=rope", "model.blocks.attention.relative.scaling=linear(2)")
    assert branches(rope)[0].relative == Rope(scaling=LinearScaling(factor=2))
    more = changed(
        "model.blocks.attention.relative=rope(scaling=linear(2))", "model.blocks.attention.relative.scaling.factor=3"
    )
    assert branches(more)[0].relative == Rope(scaling=LinearScaling(factor=3))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sample.stop=['###', \"a\"]", ("###", "a")),
        ("sample.stop=[]", ()),
        ("sample.top_k=null", None),
        ("sample.top_p=9e-1", 0.9),
        ("name=2024", "2024"),
        ("name=true", "true"),
        ("name='2024'", "2024"),
        ("name=a = b", "a = b"),
        ("name=a: b", "a: b"),
        ("name=*.txt", "*.txt"),
        ("name=", ""),
        (" name = spaced ", "spaced"),
    ],
)
def test_values_are_read_as_yaml_and_text_stays_text(text: str, value: Any) -> None:
    recipe = changed(text)
    found = recipe.name if "name" in text else getattr(recipe.sample, text.partition("=")[0].removeprefix("sample."))
    assert found == value


def test_values_of_python_are_taken_as_they_are() -> None:
    data, _ = apply(HYBRID, [Assignment.of("sample.stop", ["x"]), Assignment.of("name", "1e-3")], Recipe)
    recipe = Recipe.parse(data)
    assert (recipe.sample.stop, recipe.name) == (("x",), "1e-3")


def test_the_data_itself_stays_as_it_was() -> None:
    before = deepcopy(HYBRID)
    changed("model.blocks.mixer.bias=false", "model.blocks.0.branches.0.num_heads=8")
    assert before == HYBRID


def test_places_that_take_one_value_do_not_share_it() -> None:
    data, _ = apply(
        HYBRID, [*assignments(["model.blocks.mixer={kind: gru, hidden: 8}", "model.blocks.0.mixer.hidden=16"])], Recipe
    )
    assert [b.hidden for b in branches(Recipe.parse(data)) if isinstance(b, GRU)] == [16, 8, 8]


def test_a_spec_is_changed_in_python() -> None:
    model = Model(width=64)
    assert override(model, ["blocks.mixer=linear_attention(2)", "width=32"]) == Model(
        width=32, blocks=(Block(branches=(LinearAttention(num_heads=2), FeedForward())),)
    )
    assert override(RMSNorm(), ["eps=0.5"]) == RMSNorm(eps=0.5)


REFUSED = {
    "foo": "there is no '=' in it; write path=value, such as training.steps=500",
    "=3": "a name of its path is empty",
    "a..b=3": "a name of its path is empty",
    "modl.width=3": "there is no 'modl' in a recipe; did you mean 'model'?",
    "steps=5": "there is no 'steps' in a recipe; did you mean 'training.steps'?",
    "width=5": "there is no 'width' in a recipe; did you mean 'model.width'?",
    "model.widht=3": "there is no 'widht' in 'model'; did you mean 'width'?",
    "model.blocks.mixr.num_heads=3": "there is no 'mixr' in 'model.blocks.0'; did you mean 'mixer'?",
    "model.blocks.linear_atention.bias=true": (
        "there is no 'linear_atention' in 'model.blocks.0'; did you mean 'linear_attention'?"
    ),
    "model.blocks.linear_attn.bias=true": "there is no 'linear_attn' in 'model.blocks.0'; allowed: attention, ",
    "model.blocks.mixer.num_head=3": "there is no 'num_head' in 'model.blocks.0.branches.0'; did you mean 'num_heads'?",
    "model.blocks.gru.num_heads=3": (
        "'model.blocks.1.branches.0' is 'gru', which has no 'num_heads'; kinds that have it: "
        "attention, collision_attention, continuous_memory, cross_attention, "
    ),
    "model.blocks.7.norm=none": "'model.blocks' has 3 elements, 0 to 2, and no 7",
    "model.blocks.-4.norm=none": "'model.blocks' has 3 elements, 0 to 2, and no -4",
    "model.width.x=3": "'model.width' is a single value with nothing below it",
    "data.batching.buckets=3": (
        "'data.batching' is 'random_crops', which has no 'buckets'; kinds that have it: length_buckets"
    ),
    "training.optimizer.kind.x=3": "'kind'",
    "sample.stop=[a": "this is not YAML",
    "sample.stop=[a, f(b, c)]": (
        "'f(b' ends at a comma; inside [ ] and { } a short form with commas needs quotes around it"
    ),
    "model.blocks.0.branches.*.*=3": "there is no '*' in 'model.blocks.0.branches.0'",
}


@pytest.mark.parametrize(("text", "sentence"), REFUSED.items(), ids=REFUSED.keys())
def test_what_matches_nothing_gets_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        changed(text)
    assert str(caught.value).startswith(f"override {text!r}: ")
    assert sentence in str(caught.value)


def test_a_part_that_is_not_set_has_to_be_set_whole() -> None:
    with pytest.raises(
        SpecError,
        match=r"'model.blocks.0.branches.0.relative.scaling' is not set; set it first, such as .*\.scaling=linear",
    ):
        changed("model.blocks.attention.relative=rope", "model.blocks.attention.relative.scaling.factor=2")


@pytest.mark.parametrize("blocks", ["attention", [], None, [3]])
def test_data_that_is_no_list_of_blocks_is_refused(blocks: Any) -> None:
    with pytest.raises(SpecError):
        changed("model.blocks.mixer.num_heads=2", data={"data": "x", "model": {"blocks": blocks}})


def test_a_short_form_that_cannot_be_read_is_named_with_its_place() -> None:
    with pytest.raises(
        SpecError, match=r"model\.blocks\.0\.branches\.0: there is no branch 'attenton'; did you mean 'attention'\?"
    ):
        changed(
            "model.blocks.mixer.num_heads=2", data={"data": "x", "model": {"blocks": [{"branches": ["attenton(4)"]}]}}
        )


def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every path in plain data, with its value; the keys of ``quick`` are not names of a spec."""
    yield path, node
    inner = (
        node.items()
        if isinstance(node, dict) and path != ("quick",)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for name, value in inner:
        if name != "kind":
            yield from leaves(value, (*path, str(name)))


@settings(max_examples=15)
@given(recipes(), st.data())
def test_setting_a_key_to_its_own_value_changes_nothing(recipe: Recipe, data: st.DataObject) -> None:
    places = [place for place in leaves(plain(recipe)) if place[0]]
    path, value = data.draw(st.sampled_from(places))
    again, origins = apply(plain(recipe), [Assignment.of(".".join(path), value)], Recipe)
    assert Recipe.parse(again) == recipe
    assert [[str(name) for name in place] for place in origins] == [list(path)]


@pytest.mark.parametrize("path", [p for p, _ in leaves(plain(Recipe(data=Data(source="x")))) if p], ids=".".join)
def test_every_known_key_can_be_set_where_the_file_is_silent(path: tuple[str, ...]) -> None:
    default = Recipe(data=Data(source="x"))
    value = dict(leaves(plain(default)))[path]
    text = f"{'.'.join(path)}={value if isinstance(value, str) else json.dumps(value)}"
    assert changed(text, data={"data": "x"}) == default


def test_a_measurement_chooses_how_it_writes_and_on_what_and_nothing_else() -> None:
    recipe = changed()
    chosen = measured(recipe, ["sample.num_beams=3", "sample.temperature=0", "data.columns.text=other"])
    assert (chosen.sample.num_beams, chosen.data.columns, chosen.model) == (3, {"text": "other"}, recipe.model)
    assert measured(recipe, ()) is recipe
    with pytest.raises(SpecError, match="to evaluate on another file give --data FILE"):
        measured(recipe, ["data.source=other.txt"])
    for path in ("training.seed=1", "data.tokenizer=bytes", "model.num_layers=2"):
        with pytest.raises(SpecError, match="describes the training"):
            measured(recipe, [path])
