"""Mixers with matrices over positions: their size, rows shorter and longer than it, initial values, saved tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.mixers.modules import applied, built, some
from torch import Tensor

from qkv.inspection.cost import cost
from qkv.layers.branch import linear_maps
from qkv.layers.context import Context
from qkv.layers.signal import Signal
from qkv.mixers.registry import build_branch
from qkv.models.build import build
from qkv.spec.branches import Attention, Branch, FeedForward
from qkv.spec.cross import CrossAttention
from qkv.spec.errors import SpecError, UserError
from qkv.spec.heads import ClassificationHead
from qkv.spec.masks import Full
from qkv.spec.mixers.linformer import Linformer
from qkv.spec.mixers.position_matrices import GMLP, RandomMixing, TokenMLP
from qkv.spec.model import Block, Encoder, Latents, Model, Queries, Text
from qkv.spec.parts import Sinusoidal

KINDS = (TokenMLP, GMLP, RandomMixing, Linformer)


def model(*branches: Branch, context_length: int = 9, **fields: Any) -> Model:
    text = Text(vocab_size=7, positions=Sinusoidal())
    blocks = (Block(branches=branches),)
    head = ClassificationHead(num_classes=2)
    return Model.parse(
        {"width": 8, "context_length": context_length, "frontend": text, "blocks": blocks, "head": head} | fields
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_is_that_of_the_rows(kind: type[Branch]) -> None:
    """Of the stack that a branch lies in: context_length, number of latents, number of queries."""
    reads = Block(branches=(CrossAttention(num_heads=2), kind()))
    spec = model(
        *reads.branches, latents=Latents(count=5, blocks=(reads,)), queries=Queries(count=3, positions=Sinusoidal())
    )
    built_lengths = [branch.length for branch in build(spec).every_branch if isinstance(branch.spec, kind)]
    assert built_lengths == [5, 3]
    assert spec.position_limit is None, "latents read rows of any length"
    assert build(model(kind())).branches[0].length == 9
    assert build(model(kind(length=12))).branches[0].length == 12


def test_the_size_in_an_encoder_is_that_of_its_sources() -> None:
    encoder = Encoder(
        context_length=6, frontend=Text(vocab_size=7, positions=Sinusoidal()), blocks=(Block(branches=(TokenMLP(),)),)
    )
    spec = model(Attention(num_heads=2), CrossAttention(num_heads=2), encoder=encoder)
    built_model = build(spec)
    assert built_model.encoder is not None
    assert built_model.encoder.branches[0].length == 6
    assert (spec.position_limit, encoder.position_limit) == (None, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_estimated_parameters_are_those_of_the_model(kind: type[Branch]) -> None:
    spec = model(kind(), FeedForward(), num_layers=3)
    assert cost(spec, 2).parameters == sum(p.numel() for p in build(spec).parameters())


def test_flops_are_those_of_two_products_over_positions() -> None:
    """2 N F + 2 F N per feature."""
    with_branch, without = (
        cost(model(*branches, head=ClassificationHead(num_classes=2)), 1, 9)
        for branches in ([TokenMLP(hidden=5), FeedForward()], [FeedForward()])
    )
    assert with_branch.forward_flops - without.forward_flops == 8 * (2 * 9 * 5 + 2 * 5 * 9)


@pytest.mark.parametrize("kind", KINDS)
def test_longer_rows_are_refused(kind: type[Branch]) -> None:
    m = build(model(kind()))
    with pytest.raises(
        UserError, match=f"10 positions are more than the 9 for which '{kind.kind}' has weights; shorten"
    ):
        m(torch.zeros(1, 10, dtype=torch.long))
    with pytest.raises(UserError, match=f"10 positions are more than the 9 of '{kind.kind}'"):
        cost(model(kind()), 1, 10)
    branch = build_branch(kind(length=4), 8)
    with pytest.raises(UserError, match="5 positions are more than the 4 for which"):
        applied(branch, some(1, 5, 8, torch.float32))


def test_packed_rows_may_be_longer_than_their_documents() -> None:
    branch = built(TokenMLP(length=4))
    x, segments = some(1, 7), torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    y = applied(branch, x, segments=segments)
    assert torch.allclose(y[:, 4:], applied(branch, x[:, 4:]))


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_positions_than_a_row_has_are_refused(kind: type[Branch]) -> None:
    with pytest.raises(SpecError, match=r"blocks\.0\.branches\.0\.length: 4 positions are fewer than the 9 of a row"):
        model(kind(length=4))


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_is_needed_outside_of_a_model(kind: type[Branch]) -> None:
    with pytest.raises(UserError, match=f"the length of '{kind.kind}' is unknown outside of a model"):
        build_branch(kind(), 8)


@pytest.mark.parametrize("kind", KINDS)
def test_visible_keys_are_refused(kind: type[Branch]) -> None:
    x = some(1, 3, 8, torch.float32)
    with pytest.raises(UserError, match="visible keys cannot apply"):
        build_branch(kind(length=3), 8)(
            x, Context(torch.arange(3)[None], visible=torch.ones(1, 3, 3, dtype=torch.bool))
        )


def test_gmlp_begins_near_identity_of_its_gate() -> None:
    """The gate is 1 within 1 %, so that a position does hardly depend on others."""
    branch = build(model(GMLP(), context_length=64)).branches[0]
    v = torch.randn(2, 64, 24)
    gate = branch.mixed(branch.norm(v, Context(torch.arange(64)[None])), None)  # type: ignore[operator]
    assert (gate - 1).abs().max() < 0.01
    assert (gate - 1).abs().max() > 0


def test_random_mixing_is_saved_and_not_trained() -> None:
    m = build(model(RandomMixing(), FeedForward(), num_layers=2))
    first, second = (branch.matrix for branch in m.branches if isinstance(branch.spec, RandomMixing))
    assert torch.allclose(first.sum(1), torch.ones(9))
    assert not torch.equal(first, second), "each layer has its own"
    assert "blocks.0.branches.0.body.matrix" in m.state_dict()
    assert all("matrix" not in name for name, _ in m.named_parameters())
    assert torch.equal(first, build(m.spec).branches[0].matrix), "drawn from the seed of the weights"


def test_adapters_reach_the_token_mlp() -> None:
    m = build(model(TokenMLP(), GMLP()))
    assert [path.split("body.")[1] for path in linear_maps(m)] == ["up", "down", "up", "down"]


def test_bidirectional_attention_has_no_such_limit() -> None:
    m = build(model(Attention(num_heads=2, mask=Full())))
    out: Tensor = m(Signal(torch.zeros(1, 30, dtype=torch.long)))[0]
    assert (m.limit, out.shape) == (None, (1, 2))
