"""Linear attention: quadratic reference against loops, chunked form against reference, tails of the feature map."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.compare import assert_all_same, assert_same, outputs_and_gradients
from torch import Tensor

from qkv.ops.linear_attention import chunked, reference
from qkv.ops.linear_attention.reference import State, feature

EMPTY: State = (torch.zeros(2, 3, 4, 5, dtype=torch.float64), torch.zeros(2, 3, 4, dtype=torch.float64))
"""Sums before the first position."""


def inputs(length: int, dtype: torch.dtype = torch.float64, batch: int = 2) -> list[Tensor]:
    """q, k (B, H, N, Dk) after φ and v (B, H, N, Dv), with Dk ≠ Dv."""
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(batch, 3, length, d, generator=generator, dtype=torch.float64).to(dtype) for d in (4, 4, 5))
    return [feature(q), feature(k), v]


def by_loops(q: Tensor, k: Tensor, v: Tensor, segments: Tensor | None = None) -> Tensor:
    out = torch.zeros_like(v)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                seen = [j for j in range(i + 1) if segments is None or segments[b, j] == segments[b, i]]
                weights = [(q[b, h, i] * k[b, h, j]).sum() for j in seen]
                mixed = sum(w * v[b, h, j] for w, j in zip(weights, seen, strict=True)) / sum(weights)
                out = out.index_put((torch.tensor(b), torch.tensor(h), torch.tensor(i)), mixed)  # type: ignore[arg-type]
    return out


def chunks(q: Tensor, k: Tensor, v: Tensor, chunk: int, segments: Tensor | None = None) -> Tensor:
    return chunked.linear_attention(q, k, v, segments=segments, chunk=chunk)[0]


def test_the_reference_equals_the_loops() -> None:
    expected = outputs_and_gradients(by_loops, inputs(6))
    assert_all_same(outputs_and_gradients(lambda q, k, v: reference.linear_attention(q, k, v)[0], inputs(6)), expected)


@given(length=st.integers(1, 13), chunk=st.integers(1, 15), dtype=st.sampled_from([torch.float64, torch.float32]))
def test_chunks_equal_the_reference(length: int, chunk: int, dtype: torch.dtype) -> None:
    given_ = inputs(length, dtype)
    expected = outputs_and_gradients(
        lambda q, k, v: reference.linear_attention(q, k, v)[0], [t.double() for t in given_]
    )
    assert_all_same(
        outputs_and_gradients(partial(chunks, chunk=chunk), given_), expected, 1e-4 if dtype == torch.float32 else None
    )


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4), chunk=st.integers(1, 6))
def test_packed_documents_equal_documents_alone(lengths: list[int], chunk: int) -> None:
    total = sum(lengths)
    row = [number for number, n in enumerate(lengths) for _ in range(n)]
    segments = torch.tensor([row, [0] * total])
    q, k, v = inputs(total)
    expected = outputs_and_gradients(partial(by_loops, segments=segments), [q, k, v])
    assert_all_same(outputs_and_gradients(partial(chunks, chunk=chunk, segments=segments), [q, k, v]), expected)


@given(cut=st.integers(0, 9), chunk=st.integers(1, 6))
def test_the_state_is_the_sums_over_what_came_before(cut: int, chunk: int) -> None:
    q, k, v = inputs(9)
    parts = [(t[:, :, :cut], t[:, :, cut:]) for t in (q, k, v)]
    first, state = chunked.linear_attention(*(p[0] for p in parts), state=EMPTY, chunk=chunk)  # type: ignore[arg-type]
    second, final = chunked.linear_attention(*(p[1] for p in parts), state=state, chunk=chunk)  # type: ignore[arg-type]
    assert_same(torch.cat((first, second), 2), by_loops(q, k, v))
    assert_sums(final, k, v)


def assert_sums(state: State | None, k: Tensor, v: Tensor) -> None:
    assert state is not None
    assert_same(state[0], torch.einsum("bhnk,bhnv->bhkv", k, v))
    assert_same(state[1], k.sum(2))


def test_positions_that_do_not_count_leave_no_trace() -> None:
    q, k, v = inputs(7)
    valid = torch.arange(7) < torch.tensor([7, 3])[:, None]
    out, state = chunked.linear_attention(q, k, v, EMPTY, valid=valid, chunk=2)
    own = (t[1:] for t in EMPTY)
    alone, expected = chunked.linear_attention(q[1:, :, :3], k[1:, :, :3], v[1:, :, :3], tuple(own), chunk=5)  # type: ignore[arg-type]
    assert state is not None
    assert expected is not None
    assert_same(out[1:, :, :3], alone)
    assert all(torch.allclose(a[1:], b) for a, b in zip(state, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_feature_map_keeps_its_digits_where_it_is_small(dtype: torch.dtype) -> None:
    """elu(x) + 1 as it stands rounds e^x to a multiple of 6e-8 in fp32, and to 0 below -17."""
    x = torch.tensor([-60.0, -20.0, -12.0, -3.0, -1e-3, 0.0, 1e-3, 4.0, 50.0], dtype=dtype, requires_grad=True)
    y = feature(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    expected = [math.exp(v) if v < 0 else v + 1 for v in x.tolist()]
    assert y.tolist() == pytest.approx(expected, rel=1e-6)
    assert slope.tolist() == pytest.approx([min(math.exp(v), 1.0) for v in x.tolist()], rel=1e-6)


def test_keys_and_queries_far_below_zero_still_give_an_average_of_the_values() -> None:
    """The weights are a ratio, so their size must not matter."""
    q, k = torch.full((1, 1, 5, 4), -25.0, requires_grad=True), torch.full((1, 1, 5, 4), -15.0, requires_grad=True)
    v = torch.arange(5.0)[None, None, :, None]
    out, _ = chunked.linear_attention(feature(q), feature(k), v, chunk=2)
    assert out.flatten().tolist() == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0], rel=1e-5)
    out.sum().backward()
    assert q.grad is not None
    assert k.grad is not None
    assert bool(q.grad.isfinite().all())
    assert bool(k.grad.isfinite().all())
