"""Ways between tensors: exact inverses that only move numbers, and what each of them means."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.interop.mapping.conversions import (
    ALTERNATING,
    BY_HEAD,
    INTERLEAVED,
    ONE_BY_HEAD,
    PAIR,
    PLAIN,
    QKV,
    QKV_BY_HEAD,
    TRANSPOSED,
    Broadcast,
    Cut,
    JoinedTaps,
    Way,
    interleaved_rope,
)
from qkv.interop.mapping.names import expression, fill_indices

WAYS: dict[str, Way] = {"plain": PLAIN, "transposed": TRANSPOSED, "qkv": QKV, "pair": PAIR, "interleaved": INTERLEAVED}


@pytest.mark.parametrize("name", WAYS)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_there_and_back_is_the_same(
    name: str, groups: int, per_group: int, head_dim: int, width: int, is_bias: bool
) -> None:
    way, keys = WAYS[name], groups * head_dim
    cut = Cut((keys * per_group, keys, keys), groups)
    rows = sum(cut.sizes) + (sum(cut.sizes) % 2 if name == "pair" else 0)
    ours = torch.randn(rows) if is_bias else torch.randn(rows, width)
    if name == "pair":
        cut = Cut((), 1)
    theirs = way.outward(ours, cut)
    assert len(theirs) == way.count
    assert torch.equal(way.inward(theirs, cut), ours)
    assert sorted(torch.cat([part.flatten() for part in theirs]).tolist()) == sorted(ours.flatten().tolist())
    told = way.outward(torch.empty(ours.shape, device="meta"), cut)
    assert [part.shape for part in told] == [part.shape for part in theirs]


def test_interleaved_puts_the_queries_of_a_group_before_its_key_and_value() -> None:
    """Two groups of two query heads of one feature: Falcon's q q k v | q q k v."""
    ours = torch.tensor([0.0, 1, 2, 3, 10, 11, 20, 21])
    (theirs,) = INTERLEAVED.outward(ours, Cut((4, 2, 2), 2))
    assert theirs.tolist() == [0, 1, 10, 20, 2, 3, 11, 21]


def test_joined_rows_are_cut_where_the_branch_says() -> None:
    parts = QKV.outward(torch.arange(8.0), Cut((4, 2, 2), 2))
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3], [4, 5], [6, 7]]


@pytest.mark.parametrize(("way", "count"), [(ONE_BY_HEAD, 1), (QKV_BY_HEAD, 3)], ids=["one", "three"])
@given(heads=st.integers(1, 4), head_dim=st.integers(1, 5), width=st.integers(1, 6))
def test_rows_of_a_map_are_heads_behind_its_inputs(way: Way, count: int, heads: int, head_dim: int, width: int) -> None:
    """W[h Dk + d, i] of part p is theirs_p[i, h, d], and back."""
    cut, theirs = Cut((), heads), [torch.randn(width, heads, head_dim) for _ in range(count)]
    ours = way.inward(theirs, cut)
    wanted = torch.cat([torch.einsum("ihd->hdi", part).reshape(heads * head_dim, width) for part in theirs])
    assert torch.equal(ours, wanted)
    assert all(torch.equal(*pair) for pair in zip(way.outward(ours, cut), theirs, strict=True))


def test_taps_of_several_parts_are_read_in_any_division_of_their_features() -> None:
    way, ours, cut = JoinedTaps((2, 2, 5)), torch.arange(27.0).reshape(9, 3), Cut((), 1)
    parts = way.outward(ours, cut)
    assert [part.shape for part in parts] == [(2, 1, 3), (2, 1, 3), (5, 1, 3)]
    wanted = [tuple(part.shape) for part in parts]
    assert way.accepts([(3, 1, 3)] * 3, wanted)
    assert torch.equal(way.inward(torch.cat(parts).split(3), cut), ours)
    assert not way.accepts([(3, 1, 3), (3, 1, 3), (2, 1, 3)], wanted)
    assert not way.accepts([(3, 1, 4)] * 3, wanted)
    assert not PLAIN.accepts([(3, 1)], [(1, 3)])


def test_two_blocks_may_be_one_published_layer() -> None:
    names = [fill_indices("layers.{layer//2}.norm.*", {"layer": i, "leaf": "bias"}) for i in range(4)]
    assert names == [f"layers.{i}.norm.bias" for i in (0, 0, 1, 1)]
    assert re.fullmatch(expression("layers.{layer//2}.norm.*"), "layers.12.norm.bias")


@pytest.mark.parametrize("axis", [0, 1])
def test_an_axis_of_one_place_is_put_in_and_taken_out(axis: int) -> None:
    ours = torch.randn(3, 5)
    (theirs,) = Broadcast(axis).outward(ours, Cut((), 1))
    assert theirs.shape == ((1, 3, 5), (3, 1, 5))[axis]
    assert torch.equal(Broadcast(axis).inward([theirs], Cut((), 1)), ours)


@pytest.mark.parametrize("before", [(), (2,), (7, 3)], ids=len)
def test_an_axis_of_heads_is_the_last_one_cut(before: tuple[int, ...]) -> None:
    theirs = torch.randn(*before, 3, 5)
    ours = BY_HEAD.inward([theirs], Cut((), 3))
    assert ours.shape == (*before, 15)
    assert torch.equal(ours[..., 5:10], theirs[..., 1, :])
    assert torch.equal(BY_HEAD.outward(ours, Cut((), 3))[0], theirs)


@pytest.mark.parametrize("rotated", [None, 4], ids=["whole heads", "part of a head"])
@given(heads=st.integers(1, 3), groups=st.integers(1, 2))
def test_scores_of_interleaved_rope_are_those_of_halves(rotated: int | None, heads: int, groups: int) -> None:
    """Turning neighbours of the published features gives the scores of turning halves of the converted ones."""
    head, width, positions = 8, 5, torch.arange(3.0, dtype=torch.float64)
    way = interleaved_rope(rotated)
    sizes, counts = (heads * groups * head, groups * head, groups * head), (heads * groups, groups, groups)
    theirs = [torch.randn(size, width, dtype=torch.float64) for size in sizes]
    cut = Cut(sizes, groups, counts)
    ours = way.inward(theirs, cut)
    assert all(torch.equal(*pair) for pair in zip(way.outward(ours, cut), theirs, strict=True))
    x, turned = torch.randn(3, width, dtype=torch.float64), rotated or head
    angles = positions[:, None] * 10.0 ** -torch.arange(turned // 2)

    def neighbours(vectors: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(vectors[..., :turned].unflatten(-1, (-1, 2)).contiguous())
        return torch.cat((torch.view_as_real(pairs * torch.exp(1j * angles)).flatten(-2), vectors[..., turned:]), -1)

    def halves(vectors: torch.Tensor) -> torch.Tensor:
        first, second = vectors[..., :turned].chunk(2, -1)
        turn = (first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos())
        return torch.cat((*turn, vectors[..., turned:]), -1)

    query, key, value = ours.split(sizes)
    for matrix, stored, count in ((query, theirs[0], counts[0]), (key, theirs[1], counts[1])):
        mine = halves((x @ matrix.t()).unflatten(-1, (count, head)).transpose(0, 1))
        other = neighbours((x @ stored.t()).unflatten(-1, (count, head)).transpose(0, 1))
        assert torch.allclose(mine @ mine.transpose(-1, -2), other @ other.transpose(-1, -2))
    assert torch.equal(value, theirs[2])


@given(st.integers(1, 5), st.integers(1, 4))
def test_alternating_rows_are_parted(hidden: int, width: int) -> None:
    gate, up = torch.randn(hidden, width), torch.randn(hidden, width)
    ours, cut = torch.cat((gate, up)), Cut((hidden, hidden), 1, (1, 1))
    (theirs,) = ALTERNATING.outward(ours, cut)
    assert torch.equal(theirs[::2], gate)
    assert torch.equal(theirs[1::2], up)
    assert torch.equal(ALTERNATING.inward([theirs], cut), ours)
