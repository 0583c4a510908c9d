"""Disentangled attention against DeBERTa-v2's layer, outputs and gradients; its buckets against the published ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.mixers.modules import applied, built, some
from torch import Tensor, nn
from transformers import DebertaV2Config
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention, make_log_bucket_position

from qkv.costs.cost import cost
from qkv.layers.context import Context
from qkv.models.build import build
from qkv.ops.relative_scores import log_buckets
from qkv.spec.branches import Attention, DotProduct
from qkv.spec.errors import SpecError
from qkv.spec.masks import Causal, Full
from qkv.spec.mixers.relative_attention import DisentangledAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import BatchNorm, LayerNorm, NoPositions

EPS = 1e-7


@given(buckets=st.integers(2, 300), extra=st.integers(2, 900), distances=st.lists(st.integers(-9000, 9000), min_size=1))
def test_buckets_are_those_of_the_published_model(buckets: int, extra: int, distances: list[int]) -> None:
    distance, furthest = torch.tensor(distances), buckets // 2 + extra
    expected = make_log_bucket_position(distance, buckets, furthest).long()
    assert torch.equal(log_buckets(distance, buckets, furthest), expected)


@pytest.mark.parametrize(("buckets", "furthest"), [(256, 512), (32, 64), (7, 100), (2, 9)])
def test_every_distance_has_the_published_bucket(buckets: int, furthest: int) -> None:
    distance = torch.arange(-3 * furthest, 3 * furthest)
    assert torch.equal(
        log_buckets(distance, buckets, furthest), make_log_bucket_position(distance, buckets, furthest).long()
    )


class Published(nn.Module):
    """DeBERTa-v2's layer and table with our weights.

    As in the published encoder, the table is normed before the layer reads it.
    """

    def __init__(self, ours: Any):
        super().__init__()
        part = ours.spec
        config = DebertaV2Config(
            hidden_size=ours.width,
            num_attention_heads=part.num_heads,
            relative_attention=True,
            position_buckets=part.position_buckets or -1,
            max_relative_positions=part.max_distance,
            share_att_key=part.share_projections,
            pos_att_type=[
                name for name, on in (("c2p", part.content_to_position), ("p2c", part.position_to_content)) if on
            ],
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        config.attention_head_size = ours.head_dim
        self.layer = DisentangledSelfAttention(config).double()
        maps = (self.layer.query_proj, self.layer.key_proj, self.layer.value_proj)
        for theirs, weight, bias in zip(maps, ours.qkv.weight.chunk(3), ours.qkv.bias.chunk(3), strict=True):
            theirs.weight.data, theirs.bias.data = weight.data.clone(), bias.data.clone()
        for name, mine in (("pos_key_proj", ours.position_key), ("pos_query_proj", ours.position_query)):
            if mine is not None:
                getattr(self.layer, name).load_state_dict(mine.state_dict())
        self.table = nn.Parameter(ours.relative.table.data.clone())
        self.norm = nn.LayerNorm(ours.width, EPS).double() if isinstance(part.table_norm, LayerNorm) else nn.Identity()
        self.norm.load_state_dict(ours.relative.norm.state_dict())
        self.output = nn.Linear(ours.output.in_features, ours.width).double()
        self.output.load_state_dict(ours.output.state_dict())

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        visible = (real[:, None, :, None] & real[:, None, None, :]).expand(-1, 1, -1, -1)
        return self.output(self.layer(x, visible, rel_embeddings=self.norm(self.table))[0])


def drawn(**fields: Any) -> Any:
    """Odd sizes, and a table whose vectors matter."""
    ours = built(DisentangledAttention(**{"num_heads": 3, "head_dim": 4, **fields}), width=15)
    ours.relative.table.data *= 3
    return ours


CASES: dict[str, dict[str, Any]] = {
    "v3": {"position_buckets": 6, "max_distance": 11, "table_norm": LayerNorm(eps=EPS)},
    "projections of their own": {"position_buckets": 7, "max_distance": 12, "share_projections": False},
    "without buckets": {"position_buckets": None, "max_distance": 4, "share_projections": False},
    "more vectors than distances": {"position_buckets": 256, "max_distance": 512},
    "content to position": {"position_buckets": 4, "max_distance": 6, "position_to_content": False},
    "position to content": {
        "position_buckets": 4,
        "max_distance": 6,
        "content_to_position": False,
        "share_projections": False,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_equal_those_of_the_published_layer(case: str) -> None:
    ours = drawn(**CASES[case])
    theirs = Published(ours)
    lengths = torch.tensor([17, 9, 1])
    real = torch.arange(17) < lengths[:, None]
    x, y = some(3, 17, 15).requires_grad_(), some(3, 17, 15).requires_grad_()
    seen, expected = applied(ours, x, lengths), theirs(y, real)
    torch.testing.assert_close(seen[real], expected[real], rtol=1e-6, atol=1e-6)
    seen[real].pow(3).sum().backward()
    expected[real].pow(3).sum().backward()
    pairs = [(x.grad, y.grad), (ours.relative.table.grad, theirs.table.grad)]
    pairs.append(
        (
            ours.qkv.weight.grad,
            torch.cat([getattr(theirs.layer, f"{name}_proj").weight.grad for name in ("query", "key", "value")]),
        )
    )
    if not ours.spec.share_projections and ours.spec.position_to_content:
        pairs.append((ours.position_query.weight.grad, theirs.layer.pos_query_proj.weight.grad))
    for mine, wanted in pairs:
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-6)


def test_it_is_attention_by_content_where_the_table_and_its_biases_are_zero() -> None:
    """All but the scale, which counts the terms."""
    ours = drawn(bias=False)
    ours.relative.table.data.zero_()
    plain = built(Attention(num_heads=3, head_dim=4, bias=False, mask=Full(), temperature=3**0.5), width=15)
    for name in ("qkv", "output"):
        getattr(plain, name).load_state_dict(getattr(ours, name).state_dict())
    torch.testing.assert_close(applied(ours, some(width=15)), applied(plain, some(width=15)))


def test_what_the_caller_hides_is_hidden() -> None:
    ours, x = drawn(position_buckets=6, max_distance=11), some(2, 7, 15)
    visible = torch.ones(2, 7, 7, dtype=torch.bool).tril()
    seen = ours(x, Context(torch.arange(7)[None], visible=visible))[0]
    causal = drawn(position_buckets=6, max_distance=11, mask=Causal())
    torch.testing.assert_close(seen, applied(causal, x))


def test_the_table_is_dropped_in_training_alone() -> None:
    ours, x = drawn(table_dropout=0.5), some(width=15)
    torch.testing.assert_close(applied(ours.eval(), x), applied(drawn(), x))
    assert not torch.allclose(applied(ours.train(), x), applied(drawn(), x))


def test_a_shared_table_is_held_once_and_serves_every_layer() -> None:
    """The same as layers with equal tables of their own; its gradient is the sum of theirs."""
    part = DisentangledAttention(num_heads=2, position_buckets=4, max_distance=7, table_norm=LayerNorm(), shared=True)
    text = Text(vocab_size=9, positions=NoPositions())
    models = [
        Model(width=8, num_layers=3, frontend=text, blocks=(Block(branches=(p,)),))
        for p in (part, part.changed(shared=False))
    ]
    one, own = (build(model).double() for model in models)
    own.load_state_dict(one.state_dict(), strict=False)
    for layer in own.branches[1:]:
        layer.relative.load_state_dict(own.branches[0].relative.state_dict())
    assert [count_parameters(m) - cost(model).parameters for m, model in zip((one, own), models, strict=True)] == [0, 0]
    assert count_parameters(own) - count_parameters(one) == 2 * (8 * 8 + 2 * 8)
    ids = torch.tensor([[1, 4, 2, 8, 5, 7, 3]])
    torch.testing.assert_close(one(ids)[0], own(ids)[0])
    for model in (one, own):
        model(ids)[0].pow(2).sum().backward()
    total = sum(layer.relative.table.grad for layer in own.branches)
    torch.testing.assert_close(one.branches[0].relative.table.grad, total)


def count_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"content_to_position": False, "position_to_content": False}, "both position terms are off"),
        ({"table_norm": BatchNorm()}, "batch_norm does not apply to a table"),
        ({"position_buckets": 8, "max_distance": 5}, "5 is too small, as distances below 6 have one bucket each"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        DisentangledAttention.parse(fields)


def test_every_option_of_the_shared_base_is_computed_here_too() -> None:
    """A field that joins the base must be read by ``ScoredAttention`` as well, and then be added to this list."""
    known = {
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "value_dim",
        "temperature",
        "bias",
        "output_bias",
        "qk_norm",
        "dropout",
    }
    assert set(DotProduct.model_fields) == known


@pytest.mark.parametrize("shared", [True, False])
def test_keys_without_a_bias_are_keys_whose_bias_is_zero(shared: bool) -> None:
    """Outputs, and gradients of every bias that is there."""
    ours, zero = drawn(key_bias=False, share_projections=shared), drawn(share_projections=shared)
    width = ours.sizes[1]
    with torch.no_grad():
        for name in ("qkv", "position_key", "position_query", "output"):
            mine, other = getattr(ours, name), getattr(zero, name)
            if mine is not None:
                other.load_state_dict({**other.state_dict(), **mine.state_dict()})
        zero.relative.load_state_dict(ours.relative.state_dict())
        zero.qkv.bias.copy_(torch.cat((ours.query_bias, torch.zeros(width), ours.value_bias)))
        if zero.position_key is not None:
            zero.position_key.bias.zero_()
    assert ours.qkv.bias is None
    assert ours.position_key is None or ours.position_key.bias is None
    x, lengths = some(2, 9, 15), torch.tensor([9, 4])
    seen, wanted = applied(ours, x, lengths), applied(zero, x, lengths)
    torch.testing.assert_close(seen[0], wanted[0], rtol=1e-9, atol=1e-9)
    seen[0].pow(3).sum().backward()
    wanted[0].pow(3).sum().backward()
    for mine, theirs in ((ours.query_bias, zero.qkv.bias.grad[:width]), (ours.value_bias, zero.qkv.bias.grad[-width:])):
        torch.testing.assert_close(mine.grad, theirs, rtol=1e-7, atol=1e-9)
    assert bool(zero.qkv.bias.grad[width:-width].any())
