"""Learned positions inside attention: T5's buckets and layer against the published ones, Shaw's distances against their definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.mixers.modules import applied, built, some
from torch import Tensor
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from qkv.layers.context import Context
from qkv.layers.relative import T5Buckets, build_relative
from qkv.ops.masks import Sites
from qkv.ops.positions import clipped_distances, distance_buckets
from qkv.spec import parts
from qkv.spec.branches import Attention
from qkv.spec.errors import SpecError
from qkv.spec.masks import Causal, Full, Window


@given(
    buckets=st.integers(4, 70), extra=st.integers(1, 3000), causal=st.booleans(), distances=st.lists(st.integers(-9000, 9000), min_size=1)
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
        d_model=12, d_kv=4, num_heads=3, relative_attention_num_buckets=8, relative_attention_max_distance=10, dropout_rate=0.0
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
    """e_ij = q_i · (k_j + a_ij) / √Dk and z_i = Σ_j α_ij (v_j + b_ij), the vectors a and b written out for every pair."""
    ours = built(Attention(num_heads=3, mask=Full(), relative=parts.Shaw(max_distance=2, values=values)))
    x, length = some(2, 7), 7
    q, k, v = (t.unflatten(-1, (3, 4)).transpose(1, 2) for t in ours.qkv(x).chunk(3, -1))
    clipped = [[max(-2, min(j - i, 2)) + 2 for j in range(length)] for i in range(length)]
    a = ours.relative.key_table[torch.tensor(clipped)]
    b = ours.relative.value_table[torch.tensor(clipped)] if values else torch.zeros_like(a)
    weights = ((q[:, :, :, None] * (k[:, :, None] + a)).sum(-1) / 2).softmax(-1)
    z = (weights[..., None] * (v[:, :, None] + b)).sum(3)
    torch.testing.assert_close(applied(ours, x), ours.output(z.transpose(1, 2).flatten(2)))


PARTS = [parts.Shaw(max_distance=3, values=True), parts.Shaw(max_distance=3), parts.T5Buckets(num_buckets=6, max_distance=8)]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.kind)
@pytest.mark.parametrize("window", [None, 4])
def test_a_piece_in_the_middle_knows_where_it_stands(part: Any, window: int | None) -> None:
    """Queries that begin at 9 behind a state, in a ring too."""
    mask = Causal() if window is None else Causal() & Window(size=window, sinks=1)
    ours, x = built(Attention(num_heads=3, mask=mask, relative=part)), some(2, 14)
    state = ours.init_state(2)
    for first, last in ((0, 9), (9, 13), (13, 14)):
        context = Context(torch.arange(first, last)[None], None, None, torch.full((2,), first), first, last)
        y, state = ours(x[:, first:last], context, state)
    torch.testing.assert_close(y, applied(ours, x)[:, 13:])


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.kind)
def test_it_starts_as_attention_by_content(part: Any) -> None:
    module = build_relative(Attention(relative=part), 12)
    assert module is not None
    q, steps = torch.randn(1, 4, 5, 3), torch.arange(5)[None]
    assert not module.added(q, Sites(steps, steps), 1.0).any()


def test_the_mask_says_which_directions_have_buckets() -> None:
    causal, full = (build_relative(Attention(mask=mask, relative=parts.T5Buckets()), 12) for mask in (Causal(), Full()))
    assert isinstance(causal, T5Buckets)
    assert isinstance(full, T5Buckets)
    assert causal.causal
    assert not full.causal
    assert build_relative(Attention(relative=parts.Rope()), 12) is None


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
    with pytest.raises(SpecError, match="max_distance: 16 is within the buckets of one distance each; give at least 17"):
        parts.T5Buckets.parse({"num_buckets": 32, "max_distance": 16})
