"""Linformer: its limit is full attention; shared matrices, linear growth, and the refusal to decode."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.mixers.modules import WIDTH, applied, built, some

from qkv.costs.cost import cost
from qkv.models.build import build
from qkv.ops.masks import Full as Everything
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.errors import SpecError
from qkv.spec.heads import ClassificationHead
from qkv.spec.masks import Full
from qkv.spec.mixers.linformer import Linformer
from qkv.spec.model import Block, Model, Text
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError

SHARES = ("none", "heads", "keys_values")


def model(**fields: Any) -> Model:
    text = Text(vocab_size=7)
    blocks = (Block(branches=(Linformer(rank=4), FeedForward())),)
    return Model.parse(
        {"width": 8, "context_length": 9, "frontend": text, "blocks": blocks, "head": ClassificationHead(num_classes=2)}
        | fields
    )


@pytest.mark.parametrize("share", SHARES)
def test_as_many_keys_as_positions_and_identities_are_full_attention(share: str) -> None:
    branch = built(Linformer(length=7, rank=7, num_heads=2, share=share))  # type: ignore[arg-type]
    full = built(Attention(num_heads=2, mask=Full()))
    assert full.mask == Everything()
    full.qkv.load_state_dict(branch.qkv.state_dict())
    full.output.load_state_dict(branch.output.state_dict())
    identity = torch.eye(7, dtype=torch.float64)
    for weight in (branch.key_mixtures, branch.value_mixtures):
        if weight is not None:
            weight.data = identity.repeat(weight.shape[0] // 7, 1)
    x = some(3, 7)
    torch.testing.assert_close(applied(branch, x), applied(full, x), rtol=1e-12, atol=1e-12)
    branch.key_mixtures.data[2, 2] = 0.5
    assert (applied(branch, x) - applied(full, x)).abs().max() > 1e-3


@pytest.mark.parametrize(("share", "matrices"), [("none", 2 * 4), ("heads", 2), ("keys_values", 1)])
def test_what_is_shared_is_not_stored_twice(share: str, matrices: int) -> None:
    branch = built(Linformer(length=10, rank=3, share=share))  # type: ignore[arg-type]
    mixtures = sum(p.numel() for name, p in branch.named_parameters() if "mixtures" in name)
    assert mixtures == matrices * 3 * 10


def test_a_mixture_of_independent_keys_has_their_variance() -> None:
    branch = build(model(context_length=400, width=64)).branches[0]
    keys = torch.randn(1, 4, 400, 16, generator=torch.Generator().manual_seed(0))
    found = branch._mixtures(branch.key_mixtures, keys)  # type: ignore[operator]
    assert float(found.detach().std()) == pytest.approx(1.0, rel=0.3)


def test_twice_as_long_rows_cost_twice_as_much() -> None:
    """Full attention costs four times as much in its products of queries and keys."""
    spec = model(width=16, context_length=512, blocks=(Block(branches=(Linformer(rank=16),)),))
    short, long = (cost(spec, 1, length).forward_flops for length in (256, 512))
    head = 2 * 16 * 2
    assert long - head == pytest.approx(2 * (short - head), rel=1e-3)


def test_a_model_that_has_to_decode_is_refused_with_the_reason() -> None:
    data = {"data": "x", "model": {"blocks": [{"branches": ["linformer", "feed_forward"]}]}}
    with pytest.raises(
        SpecError,
        match=r"model\.blocks\.0\.branches\.0: this branch sees later positions, but the task 'next_token' needs a "
        r"model that decodes; its keys are mixtures of the whole row; use attention, or linear_attention",
    ):
        Recipe.parse(data)
    with pytest.raises(UserError, match="cannot decode one token at a time; its keys are mixtures of the whole row"):
        build(model()).init_state(1)


def test_dropout_is_of_the_weights_and_of_training_alone() -> None:
    branch, x = built(Linformer(length=7, rank=5, num_heads=2, dropout=0.5)), some(2, 7, WIDTH)
    assert torch.equal(applied(branch.eval(), x), applied(branch, x))
    assert not torch.equal(applied(branch.train(), x), applied(branch, x))
