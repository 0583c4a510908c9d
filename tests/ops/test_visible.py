"""Counted pairs are those that the predicates of the masks let through."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.mixers.masks import build_mask
from qkv.ops import masks as predicates
from qkv.ops.attention.visible import visible_pairs
from qkv.ops.masks import Sites
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


@given(mask=masks, length=st.integers(1, 24), extra=st.integers(0, 9))
def test_pairs_are_counted(mask: Mask, length: int, extra: int) -> None:
    """Of all positions, and of the last ones as queries."""
    assert visible_pairs(build_mask(mask), length, length + extra) == int(seen(mask, length + extra)[extra:].sum())


def test_blocks_are_skipped_without_being_evaluated() -> None:
    assert visible_pairs(predicates.Causal(), 1000, 1000) == 1000 * 1001 // 2
    assert visible_pairs(predicates.Window(300), 1000, 1000) == int(seen(Window(size=300), 1000).sum())


def test_long_sequences_are_estimated() -> None:
    length = 3 * 4096 + 5
    assert visible_pairs(predicates.Causal(), length, length) == pytest.approx(length * (length + 1) / 2, rel=1e-3)
    assert visible_pairs(build_mask(Causal() & Window(size=100)), length, length) == pytest.approx(
        100 * length, rel=0.01
    )


def test_a_prefix_of_unknown_length_is_half_of_the_row() -> None:
    assert visible_pairs(predicates.Prefix(), 10, 10) == 10 * 5


def test_a_mask_of_ones_own() -> None:
    class Odd(predicates.Mask):
        """Every odd key."""

        def allowed(self, grid: predicates.Grid) -> torch.Tensor:
            return grid.key % 2 == 1

    assert visible_pairs(Odd(), 5, 5) == 10
