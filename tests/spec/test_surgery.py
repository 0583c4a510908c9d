"""Other parts put into a spec by layer."""

from __future__ import annotations

import pytest

from qkv.spec.errors import SpecError
from qkv.spec.model import Model
from qkv.spec.models.surgery import folded, operated, unrolled
from qkv.spec.recipe import Recipe

ATTENTION = {
    "kind": "attention",
    "num_heads": 6,
    "num_kv_heads": 3,
    "bias": False,
    "dropout": 0.1,
    "mask": "causal & window(8)",
}

KEPT = {"features": {"kind": "elu"}, "mask": "causal"}
"""Fields of linear attention that no override names."""


def recipe(**model: object) -> Recipe:
    described = {
        "width": 24,
        "num_layers": 4,
        "blocks": [{"branches": [ATTENTION, "feed_forward(32)"], "norm": "rms_norm"}],
        **model,
    }
    return Recipe.parse({"data": "a.txt", "model": described})


def kinds(found: Recipe) -> list[str]:
    return [block.branches[0].kind for block in found.model.layers]


@pytest.mark.parametrize("path", ["blocks.*.mixer", "model.blocks.*.mixer", "blocks.attention", "blocks.*.branches.0"])
def test_a_part_takes_the_place_of_another_in_every_layer(path: str) -> None:
    found = operated(recipe(), [f"{path}=linear_attention"])
    assert kinds(found) == ["linear_attention"] * 4
    assert (len(found.model.blocks), found.model.num_layers) == (1, 4)


def test_an_index_is_that_of_a_layer() -> None:
    found = operated(recipe(), ["blocks.2.mixer=gru"])
    assert kinds(found) == ["attention", "attention", "gru", "attention"]
    assert found.model.layers[3] == recipe().model.layers[3]


def test_layers_by_turns_are_listed_as_a_pattern() -> None:
    found = operated(recipe(), ["blocks.1.mixer=gru", "blocks.3.mixer=gru"])
    assert (len(found.model.blocks), found.model.num_layers) == (2, 4)


def test_what_is_not_said_stays_as_the_old_part_had_it() -> None:
    new = operated(recipe(), ["blocks.*.mixer=linear_attention(chunk=16)"]).model.layers[0].branches[0]
    assert new.to_dict() == {"kind": "linear_attention", "num_heads": 6, **KEPT, "chunk": 16, "bias": False}
    other = operated(recipe(), ["blocks.*.mixer=attention(num_kv_heads=2)"]).model.layers[0].branches[0]
    assert other == recipe().model.layers[0].branches[0].changed(num_kv_heads=2)


def test_what_is_said_counts_even_where_it_is_the_default() -> None:
    new = operated(recipe(), ["blocks.*.mixer=linear_attention(4, bias=true)"]).model.layers[0].branches[0]
    assert new.to_dict() == {"kind": "linear_attention", "num_heads": 4, **KEPT, "chunk": 64, "bias": True}


def test_heads_are_those_of_the_old_part_before_they_are_checked() -> None:
    # The default of four heads would not divide the width.
    narrow = recipe(width=30, blocks=[{"branches": [{"kind": "attention", "num_heads": 5}]}])
    assert operated(narrow, ["blocks.*.mixer=linear_attention"]).model.layers[0].branches[0].to_dict()["num_heads"] == 5


def test_training_and_other_parts_change_too() -> None:
    found = operated(
        recipe(), ["training.optimizer.lr=0.5", "norm=rms_norm", "blocks.*.feed_forward=gated_feed_forward"]
    )
    assert (found.training.optimizer.lr, found.model.norm.kind) == (0.5, "rms_norm")
    assert found.model.layers[0].branches[1].to_dict()["hidden"] == 32


def test_an_encoder_has_layers_of_its_own() -> None:
    reading = {"branches": [{"kind": "attention", "num_heads": 3, "mask": "full"}, "feed_forward"]}
    pair = Recipe.parse(
        {
            "data": "a.txt | b.txt",
            "task": "translation",
            "model": {
                "width": 24,
                "encoder": {"num_layers": 3, "blocks": [reading]},
                "blocks": [{"branches": ["attention", "cross_attention"]}],
            },
        }
    )
    found = operated(pair, ["encoder.blocks.1.mixer=convolution"])
    assert found.model.encoder is not None
    assert [block.branches[0].kind for block in found.model.encoder.layers] == ["attention", "convolution", "attention"]
    assert found.model.blocks == pair.model.blocks


def test_unrolling_and_folding_are_inverse() -> None:
    model = recipe(num_layers=5, blocks=[{"branches": ["gru"]}, {"branches": ["attention"]}]).model
    assert unrolled(model).num_layers is None
    assert len(unrolled(model).blocks) == 5
    assert folded(unrolled(model)) == model
    assert folded(Model(blocks=(), frontend={"kind": "text"})).layers == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("blocks.*.mixer=linear_atention", "there is no branch 'linear_atention'; did you mean 'linear_attention'?"),
        ("blocks.9.mixer=gru", "'model.blocks' has 4 elements, 0 to 3, and no 9"),
        ("blocks.*.mixer=convolution", "this branch sees later positions"),
        ("blocks.*.mixer=attention(num_heads=7)", "cannot be shared evenly by 7 query heads"),
        ("blocks.mixr=gru", "there is no 'mixr'"),
        ("blocks.*.mixer=gru(", "cannot be read as a branch"),
    ],
)
def test_what_does_not_fit_is_refused(change: str, sentence: str) -> None:
    with pytest.raises(SpecError) as error:
        operated(recipe(), [change])
    assert sentence in str(error.value)
