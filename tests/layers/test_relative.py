"""Learned positions inside attention: T5's buckets and layer against the published ones, Shaw's distances against their
definition; Falcon's slopes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.mixers.modules import applied, built, following, some
from tests.models.stacks import ids, model
from torch import Tensor
from transformers import T5Config, T5EncoderModel
from transformers.models.falcon.modeling_falcon import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from qkv.costs.cost import cost
from qkv.layers.context import Context
from qkv.layers.relative import T5Buckets, build_relative
from qkv.models.build import build
from qkv.ops.masks import Sites
from qkv.ops.positions import clipped_distances, distance_buckets
from qkv.spec import parts
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.errors import SpecError
from qkv.spec.heads import LanguageModelHead
from qkv.spec.masks import Causal, Full, Window
from qkv.spec.model import Block, Encoder, Text
from qkv.spec.models.cross import CrossAttention


@given(
    buckets=st.integers(4, 70),
    extra=st.integers(1, 3000),
    causal=st.booleans(),
    distances=st.lists(st.integers(-9000, 9000), min_size=1),
)
def test_buckets_are_those_of_the_published_model(buckets: int, extra: int, causal: bool, distances: list[int]) -> None:
    distance, furthest = torch.tensor(distances), buckets // 2 + extra
    expected = T5Attention._relative_position_bucket(distance, not causal, buckets, furthest)
    assert torch.equal(distance_buckets(distance, buckets, furthest, causal), expected)


@pytest.mark.parametrize("causal", [True, False])
def test_every_distance_near_and_far_has_the_published_bucket(causal: bool) -> None:
    distance = torch.arange(-1500, 1500)
    for buckets, furthest in ((32, 128), (8, 20), (5, 9), (64, 1000)):
        expected = T5Attention._relative_position_bucket(distance, not causal, buckets, furthest)
        assert torch.equal(distance_buckets(distance, buckets, furthest, causal), expected)


def published(ours: Any, causal: bool) -> T5Attention:
    """T5's layer with the weights of ours, whose logits are not scaled."""
    config = T5Config(
        d_model=12,
        d_kv=4,
        num_heads=3,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=10,
        dropout_rate=0.0,
    )
    config.is_decoder = causal
    theirs = T5Attention(config, has_relative_attention_bias=True).double().eval()
    for name, weight in zip("qkv", ours.qkv.weight.chunk(3), strict=True):
        getattr(theirs, name).weight.data = weight.data
    theirs.o.weight.data = ours.output.weight.data
    theirs.relative_attention_bias.weight.data = ours.relative.table.data
    return theirs


@pytest.mark.parametrize("causal", [True, False])
def test_the_layer_equals_t5_s(causal: bool) -> None:
    relative = parts.T5Buckets(num_buckets=8, max_distance=10)
    mask = Causal() if causal else Full()
    ours = built(Attention(num_heads=3, mask=mask, relative=relative, temperature=0.5, bias=False))  # 0.5 √4 = 1
    x = some(2, 20)
    theirs = published(ours, causal)
    bias = theirs.compute_bias(20, 20)
    if causal:
        bias = bias.masked_fill(torch.ones(20, 20, dtype=torch.bool).triu(1), -torch.inf)
    expected = theirs(x, mask=None, position_bias=bias)[0]
    torch.testing.assert_close(applied(ours, x), expected)


def test_shaw_s_distances_are_clipped_and_counted_from_the_furthest_before() -> None:
    index = clipped_distances(torch.tensor([3, 10]), torch.arange(6), 2)
    assert index.tolist() == [[0, 0, 1, 2, 3, 4], [0] * 6]


@pytest.mark.parametrize("values", [False, True])
def test_shaw_s_layer_is_its_equation(values: bool) -> None:
    """e_ij = q_i · (k_j + a_ij) / √Dk, z_i = Σ_j α_ij (v_j + b_ij), with vectors a and b written out for every pair."""
    ours = built(Attention(num_heads=3, mask=Full(), relative=parts.Shaw(max_distance=2, values=values)))
    x, length = some(2, 7), 7
    q, k, v = (t.unflatten(-1, (3, 4)).transpose(1, 2) for t in ours.qkv(x).chunk(3, -1))
    clipped = [[max(-2, min(j - i, 2)) + 2 for j in range(length)] for i in range(length)]
    a = ours.relative.key_table[torch.tensor(clipped)]
    b = ours.relative.value_table[torch.tensor(clipped)] if values else torch.zeros_like(a)
    weights = ((q[:, :, :, None] * (k[:, :, None] + a)).sum(-1) / 2).softmax(-1)
    z = (weights[..., None] * (v[:, :, None] + b)).sum(3)
    torch.testing.assert_close(applied(ours, x), ours.output(z.transpose(1, 2).flatten(2)))


PARTS = [
    parts.Shaw(max_distance=3, values=True),
    parts.Shaw(max_distance=3),
    parts.T5Buckets(num_buckets=6, max_distance=8),
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.kind)
@pytest.mark.parametrize("window", [None, 4])
def test_a_piece_in_the_middle_knows_where_it_stands(part: Any, window: int | None) -> None:
    """Queries that begin at 9 behind a state, in a ring too."""
    mask = Causal() if window is None else Causal() & Window(size=window, sinks=1)
    ours, x = built(Attention(num_heads=3, mask=mask, relative=part)), some(2, 14)
    state = ours.init_state(2)
    for first, last in ((0, 9), (9, 13), (13, 14)):
        y, state = ours(x[:, first:last], following(first, last - first, 2), state)
    torch.testing.assert_close(y, applied(ours, x)[:, 13:])


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.kind)
def test_it_starts_as_attention_by_content(part: Any) -> None:
    module = build_relative(Attention(relative=part), 12)
    assert module is not None
    q, steps = torch.randn(1, 4, 5, 3), torch.arange(5)[None]
    assert not module.bias(q, Sites(steps, steps), 1.0, Context(steps)).any()


def test_the_mask_says_which_directions_have_buckets() -> None:
    causal, full = (build_relative(Attention(mask=mask, relative=parts.T5Buckets()), 12) for mask in (Causal(), Full()))
    assert isinstance(causal, T5Buckets)
    assert isinstance(full, T5Buckets)
    assert causal.causal
    assert not full.causal
    assert not list(build_relative(Attention(relative=parts.Rope()), 12).parameters())


@pytest.mark.parametrize("scaled", [False, True])
def test_rounded_slopes_are_falcons_for_every_count_of_heads(scaled: bool) -> None:
    steps = torch.arange(600)[None]
    for heads in range(1, 72):
        ours = build_relative(
            Attention(num_heads=heads, head_dim=16, relative=parts.Alibi(scaled=scaled, rounded="bf16")), 12
        )
        assert ours is not None
        found = ours.bias(torch.zeros(1, heads, 1, 16), Sites(steps[:, :1], steps), 0.25, Context(steps[:, :1]))[
            0, :, 0
        ]
        theirs = build_alibi_tensor(torch.ones_like(steps), heads, torch.float32)[:, 0]
        assert torch.equal(found, theirs / 4 if scaled else theirs)


@pytest.mark.parametrize("cast", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.kind)
def test_mixed_precision_gives_nearly_the_same(part: Any, cast: torch.dtype) -> None:
    ours = built(Attention(num_heads=3, relative=part, top_k=5), dtype=torch.float32)
    x = some(2, 9, dtype=torch.float32)
    expected: Tensor = applied(ours, x)
    with torch.autocast("cpu", torch.bfloat16):
        seen = applied(ours, x.to(cast))
    seen.float().pow(2).sum().backward()
    assert (seen.float() - expected).norm() < 0.05 * expected.norm()
    assert all(bool(p.grad.isfinite().all()) for p in ours.parameters())


def test_a_largest_distance_within_the_exact_buckets_is_refused() -> None:
    with pytest.raises(
        SpecError, match="max_distance: 16 is too small, as distances below 17 have one bucket each; give 17"
    ):
        parts.T5Buckets.parse({"num_buckets": 32, "max_distance": 16})


def shared(causal: bool = True, layers: int = 3, **fields: Any) -> Any:
    mask = Causal() if causal else Full()
    block = Block(
        branches=(
            Attention(num_heads=2, mask=mask, relative=parts.T5Buckets(num_buckets=6, max_distance=9, shared=True)),
        )
    )
    return build(model(block, num_layers=layers, **fields)).double().eval()


def tables(m: Any) -> list[str]:
    return [name for name in m.state_dict() if name.endswith("relative.table")]


def test_a_shared_table_is_held_once_and_serves_every_layer() -> None:
    """The same weights in a table of each layer's own give the same, and its gradient is the sum of theirs."""
    m = shared()
    assert tables(m) == ["blocks.0.branches.0.body.relative.table"]
    assert sum(name.endswith("relative.table") for name, _ in m.named_parameters()) == 1
    m.blocks[0].branches[0].body.relative.table.data.normal_(generator=torch.Generator().manual_seed(1))
    own = Attention(num_heads=2, relative=parts.T5Buckets(num_buckets=6, max_distance=9))
    apart: Any = build(model(Block(branches=(own,)), num_layers=3)).double().eval()
    table = m.state_dict()[tables(m)[0]]
    apart.load_state_dict({**m.state_dict(), **{name: table.clone() for name in tables(apart)}})
    assert len(tables(apart)) == 3
    torch.testing.assert_close(m(ids())[0], apart(ids())[0])
    for one in (m, apart):
        one(ids())[0].square().sum().backward()
    expected = sum(block.branches[0].body.relative.table.grad for block in apart.blocks)
    torch.testing.assert_close(m.blocks[0].branches[0].body.relative.table.grad, expected)


def test_a_shared_table_is_shared_after_copying_moving_and_computing_again() -> None:
    m = copy.deepcopy(shared())
    table = m.blocks[0].branches[0].body.relative.table
    table.data.normal_(generator=torch.Generator().manual_seed(1))
    expected = m(ids())[0]
    assert m.blocks[2].branches[0].body.relative.owner[0].table is table
    expected.square().sum().backward()
    first, table.grad = table.grad, None
    m.recompute_blocks(True)
    m(ids())[0].square().sum().backward()
    torch.testing.assert_close(table.grad, first)
    torch.testing.assert_close(m.float()(ids())[0], expected.float(), rtol=1e-4, atol=1e-5)


def test_layers_of_other_sizes_and_the_two_stacks_have_tables_of_their_own() -> None:
    relative = parts.T5Buckets(num_buckets=6, max_distance=9, shared=True)
    two, one = (Attention(num_heads=heads, relative=relative) for heads in (2, 1))
    reads = Encoder(
        blocks=(Block(branches=(Attention(num_heads=2, mask=Full(), relative=relative),)),),
        num_layers=2,
        frontend=Text(vocab_size=5),
    )
    m = build(
        model(
            Block(branches=(two, CrossAttention(num_heads=2))), Block(branches=(one, two)), num_layers=4, encoder=reads
        )
    )
    names = [
        "blocks.0.branches.0.body.relative.table",
        "blocks.1.branches.0.body.relative.table",
        "encoder.blocks.0.branches.0.body.relative.table",
    ]
    assert sorted(tables(m)) == names
    assert cost(m.spec).parameters == sum(p.numel() for p in m.parameters())


@torch.no_grad()
def test_a_stack_of_t5_s_gives_its_vectors() -> None:
    """T5's encoder: no scale, one table, rms norms, and the tied head of v1.0 times width^-1/2."""
    config = T5Config(
        d_model=16, d_kv=4, num_heads=3, d_ff=20, num_layers=3, vocab_size=13, relative_attention_num_buckets=8
    )
    config.dropout_rate, config.relative_attention_max_distance = 0.0, 10
    theirs = T5EncoderModel(config).double().eval()
    generator = torch.Generator().manual_seed(4)
    for parameter in theirs.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    relative = parts.T5Buckets(num_buckets=8, max_distance=10, shared=True)
    attention = Attention(num_heads=3, head_dim=4, mask=Full(), relative=relative, temperature=4**-0.5, bias=False)
    norm = parts.RMSNorm(eps=config.layer_norm_epsilon)
    block = Block(branches=(attention, FeedForward(hidden=20, activation="relu", bias=False)), norm=norm)
    text = Text(vocab_size=13, positions=parts.NoPositions())
    ours: Any = (
        build(model(block, num_layers=3, norm=norm, frontend=text, head=LanguageModelHead(scale=16**-0.5)))
        .double()
        .eval()
    )
    ours.frontend.table.data, ours.norm.weight.data = (
        theirs.shared.weight.data,
        theirs.encoder.final_layer_norm.weight.data,
    )
    first = theirs.encoder.block[0].layer[0].SelfAttention
    ours.blocks[0].branches[0].body.relative.table.data = first.relative_attention_bias.weight.data
    for own, other in zip(ours.blocks, theirs.encoder.block, strict=True):
        (mix, forward), (attends, feeds) = own.branches, other.layer
        mix.norm.weight.data, forward.norm.weight.data = attends.layer_norm.weight.data, feeds.layer_norm.weight.data
        mix.body.qkv.weight.data = torch.cat([getattr(attends.SelfAttention, name).weight for name in "qkv"])
        mix.body.output.weight.data = attends.SelfAttention.o.weight.data
        forward.body.up.weight.data, forward.body.down.weight.data = (
            feeds.DenseReluDense.wi.weight.data,
            feeds.DenseReluDense.wo.weight.data,
        )
    vectors = theirs(ids(2, 20)).last_hidden_state
    torch.testing.assert_close(ours.features(ids(2, 20))[0], vectors, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours(ids(2, 20))[0], (vectors * 16**-0.5) @ theirs.shared.weight.T, rtol=1e-6, atol=1e-6)
