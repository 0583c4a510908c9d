"""Predicates of masks, and quick answers about whole blocks that let a fast path skip work, against every pair."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.attention_cases import MASKS, sees, sites, table

from qkv.mixers.masks import build_mask
from qkv.ops.masks import Blocks, Causal, Explicit, Fixed, Full, Levels, Mask, Prefix, Sites, Span, Strided, Window
from qkv.spec import masks as spec

POSITIONS = 24

simple = st.one_of(
    st.just(Full()),
    st.just(Causal()),
    st.builds(Window, st.integers(1, 9), st.integers(0, 4)),
    st.builds(Prefix, st.integers(1, 12)),
    st.builds(Strided, st.integers(1, 6)),
    st.builds(Fixed, st.integers(1, 6), st.integers(1, 3)),
    st.builds(Levels, st.sampled_from([(1,), (1, 2), (1, 3, 6)]), st.sampled_from(["within", "across"])),
    st.builds(Blocks, st.integers(1, 8), st.integers(0, 2), st.integers(0, 2)),
    st.just(Explicit(table(1, 1, POSITIONS, POSITIONS))),
)
joined = st.recursive(
    simple,
    lambda inner: st.tuples(inner, inner, st.booleans()).map(lambda t: t[0] & t[1] if t[2] else t[0] | t[1]),
    max_leaves=4,
)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    ends = [sorted(draw(st.tuples(st.integers(0, POSITIONS - 1), st.integers(0, POSITIONS - 1)))) for _ in range(2)]
    return Span(*ends[0], *ends[1])


def dense(mask: Mask, span: Span) -> torch.Tensor:
    query = torch.arange(span.first_query, span.last_query + 1)[None]
    key = torch.arange(span.first_key, span.last_key + 1)[None]
    return Sites(query, key).visible(mask, 1)[0, 0]


@settings(max_examples=400)
@given(mask=joined, span=spans())
def test_skipped_blocks_hold_nothing_and_whole_blocks_everything(mask: Mask, span: Span) -> None:
    shown = dense(mask, span)
    if not mask.may_see(span):
        assert not shown.any()
    if mask.sees_all(span):
        assert shown.all()


@settings(max_examples=300)
@given(mask=st.one_of(simple), span=spans())
def test_masks_that_bound_the_work_know_exactly_what_they_skip(mask: Mask, span: Span) -> None:
    if isinstance(mask, (Full, Causal, Window, Prefix, Blocks)):
        assert mask.may_see(span) == bool(dense(mask, span).any())
    if isinstance(mask, (Full, Causal, Prefix)) or (isinstance(mask, Window) and not mask.sinks):
        assert mask.sees_all(span) == bool(dense(mask, span).all())


@settings(max_examples=100)
@given(mask=joined)
def test_the_dense_form_is_the_sentence_pair_by_pair(mask: Mask) -> None:
    shown = dense(mask, Span(0, POSITIONS - 1, 0, POSITIONS - 1)).tolist()
    assert shown == [[sees(mask, 0, 0, i, j) for j in range(POSITIONS)] for i in range(POSITIONS)]


@pytest.mark.parametrize("name", MASKS)
def test_no_mask_shows_an_empty_slot_or_another_document(name: str) -> None:
    for kind in ("padded", "packed", "ring"):
        places = sites(kind, 9, 14 if kind == "ring" else 9)
        shown = places.visible(MASKS[name], 4).expand(2, 4, -1, -1)
        empty = (places.key < 0).expand(2, -1)[:, None, None, :].expand_as(shown)
        assert not shown[empty].any()
        if places.query_segment is not None and places.key_segment is not None:
            foreign = (places.query_segment[:, :, None] != places.key_segment[:, None, :])[:, None].expand_as(shown)
            assert foreign.any()
            assert not shown[foreign].any()


def test_a_part_of_the_sites_sees_what_the_whole_sees_there() -> None:
    for kind, name in (
        ("padded", "causal"),
        ("packed", "full"),
        ("ring", "window with sinks"),
        ("aligned", "adjacency by row and head, causal"),
    ):
        places = sites(kind, 9, 14 if kind == "ring" else 9)
        queries, keys = slice(2, 7), slice(1, 6)
        whole = places.visible(MASKS[name], 4)[..., queries, keys]
        assert torch.equal(places.part(queries, keys).visible(MASKS[name], 4), whole)


def test_the_span_of_aligned_sites() -> None:
    assert sites("aligned, fewer queries", 9, 14).span() == Span(5, 13, 0, 13)
    assert sites("aligned", 9, 9).span() == Span(0, 8, 0, 8)


part = st.one_of(
    st.builds(spec.Full),
    st.builds(spec.Causal),
    st.builds(spec.Window, size=st.integers(1, 9), sinks=st.integers(0, 4)),
    st.builds(spec.Prefix, length=st.integers(1, 12)),
    st.builds(spec.Strided, stride=st.integers(1, 6)),
    st.builds(spec.Fixed, stride=st.integers(1, 6), summary=st.integers(1, 3)),
    st.builds(spec.Levels, factors=st.sampled_from([(1,), (1, 3, 6)]), see=st.sampled_from(["within", "across"])),
    st.builds(spec.Blocks, size=st.integers(1, 8), back=st.integers(0, 2), ahead=st.integers(0, 2)),
)
parts = st.recursive(
    part,
    lambda inner: st.tuples(inner, inner, st.booleans()).map(lambda t: t[0] & t[1] if t[2] else t[0] | t[1]),
    max_leaves=5,
)


@settings(max_examples=400)
@given(mask=parts)
def test_what_a_spec_promises_of_its_mask_is_kept_by_the_predicate(mask: spec.Mask) -> None:
    """A causal stack and the size of a ring rest on these promises."""
    shown = dense(build_mask(mask), Span(0, POSITIONS - 1, 0, POSITIONS - 1))
    query, key = torch.arange(POSITIONS)[:, None], torch.arange(POSITIONS)[None]
    if mask.causal:
        assert not shown[(key > query).expand_as(shown)].any()
    if mask.reach is not None:
        out_of_reach = (key <= query - mask.reach) & (key >= mask.first_visible)
        assert not shown[out_of_reach].any()


@given(mask=part)
def test_a_spec_becomes_the_predicate_of_its_name(mask: spec.Mask) -> None:
    built = build_mask(mask)
    assert type(built).__name__ == type(mask).__name__
    assert all(getattr(built, name) == getattr(mask, name) for name in type(mask).model_fields)
