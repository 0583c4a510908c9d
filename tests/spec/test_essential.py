"""What a spec says beyond the defaults."""

from __future__ import annotations

import pytest

from qkv.spec.branches import GRU, Attention
from qkv.spec.model import Block, Model
from qkv.spec.recipe import Recipe


def test_defaults_are_left_out_at_every_depth() -> None:
    model = Model(width=64, blocks=(Block(branches=(Attention(num_heads=2), GRU()), dropout=0.1),))
    wanted = {
        "width": 64,
        "blocks": [{"branches": [{"kind": "attention", "num_heads": 2}, {"kind": "gru"}], "dropout": 0.1}],
    }
    assert model.essential() == wanted
    assert Model().essential() == {}


@pytest.mark.parametrize(
    "recipe",
    [
        {
            "data": "a.txt",
            "model": {"width": 32, "blocks": [{"branches": ["gru(8)", "feed_forward"], "norm": "rms_norm(eps=1e-3)"}]},
        },
        {
            "task": "sorting(length=3)",
            "model": {"head": "tokens", "blocks": [{"branches": ["attention(2, mask=full)"]}]},
        },
    ],
    ids=["text", "generated"],
)
def test_it_is_enough_to_make_the_same_again(recipe: dict[str, object]) -> None:
    spec = Recipe.parse(recipe)
    assert Recipe.parse(spec.essential()) == spec
