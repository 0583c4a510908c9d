"""Counted pairs are those that the predicates of the masks let through."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.inspection.visible import Tiles, visible_keys, visible_pairs, visible_tiles
from qkv.mixers.masks import build_mask
from qkv.ops.masks import Sites
from qkv.spec.errors import UserError
from qkv.spec.masks import AllOf, AnyOf, Blocks, Causal, Fixed, Full, Mask, Prefix, Strided, Window

sizes = st.integers(1, 20)
plain = st.one_of(
    st.sampled_from([Full(), Causal()]),
    st.builds(Window, size=sizes, sinks=st.integers(0, 20)),
    st.builds(Prefix, length=sizes),
    st.builds(Strided, stride=sizes),
    st.builds(Fixed, stride=sizes, summary=sizes),
    st.builds(Blocks, size=sizes, back=st.integers(0, 2), ahead=st.integers(0, 2)),
)
pairs = st.lists(plain, min_size=1, max_size=3).map(tuple)
masks = st.one_of(plain, st.builds(AllOf, masks=pairs), st.builds(AnyOf, masks=pairs))


def seen(mask: Mask, length: int) -> torch.Tensor:
    positions = torch.arange(length)[None]
    return Sites(positions, positions, aligned=True).visible(build_mask(mask), 1)[0, 0]


@given(mask=masks, length=st.integers(1, 24))
def test_pairs_are_counted(mask: Mask, length: int) -> None:
    assert visible_pairs(mask, length) == int(seen(mask, length).sum())


@pytest.mark.parametrize("mask", [Causal(), Causal() & Window(size=9, sinks=2), Full(), Window(size=30)])
def test_blocks_are_counted(mask: Mask) -> None:
    tiles = seen(mask, 70).unfold(0, 10, 10).unfold(1, 10, 10)
    count = int(tiles.any(-1).any(-1).sum())
    assert visible_tiles(mask, 70, 10) == Tiles(count, count * 100)


def test_the_last_blocks_are_smaller() -> None:
    assert visible_tiles(Causal(), 25, 10) == Tiles(6, 10 * 10 + 10 * 20 + 5 * 25)


def test_long_sequences_are_estimated() -> None:
    length = 3 * 4096 + 5
    assert visible_pairs(Causal(), length) == pytest.approx(length * (length + 1) / 2, rel=1e-3)
    assert visible_pairs(Causal() & Window(size=100), length) == pytest.approx(100 * length, rel=0.01)


def test_a_mask_of_ones_own() -> None:
    class Odd(Mask, kind="odd_for_cost"):
        """Every odd key."""

    try:
        with pytest.raises(UserError, match="registered for the mask 'odd_for_cost'"):
            visible_pairs(Odd(), 4)
        visible_keys(Odd)(lambda mask, query, length: sum(1 << j for j in range(1, length, 2)))
        assert visible_pairs(Odd(), 5) == 10
    finally:
        Mask.kinds().pop("odd_for_cost")
