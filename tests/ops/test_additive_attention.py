"""Additive attention: reference against loops over single pairs, fast form against reference, padding of the memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.compare import assert_all_same, assert_same, outputs_and_gradients
from torch import Tensor

from qkv.ops.additive_attention import blocks, choose, reference

A, DQ, DK = 6, 5, 3


def tensors(queries: int = 4, slots: int = 5, batch: int = 3, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q (B, N, Dq), memory (B, M, Dk), W_q, W_k, v."""
    generator = torch.Generator().manual_seed(queries + 10 * slots)
    shapes = [(batch, queries, DQ), (batch, slots, DK), (A, DQ), (A, DK), (A,)]
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def by_loops(q: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, v: Tensor, lengths: list[int]) -> Tensor:
    rows = []
    for row, length in enumerate(lengths):
        for query in q[row]:
            s = [(v * (w_q @ query + w_k @ slot).tanh()).sum() for slot in memory[row, :length]]
            p = torch.stack(s).softmax(0) if s else q.new_zeros(0)
            rows.append(torch.cat((p, (query.sum() + w_k.sum() + v.sum()) * q.new_zeros(memory.shape[1] - length))))
    return torch.stack(rows).view(*q.shape[:2], -1)


def plain(q: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, v: Tensor, lengths: Tensor | None = None) -> Tensor:
    return reference.weights(q, memory, (w_q, w_k, v), lengths)


def fast(q: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, v: Tensor, lengths: Tensor | None = None) -> Tensor:
    return choose.additive_weights(q, choose.additive_keys(memory, w_k), w_q, v, lengths)


@pytest.mark.parametrize("lengths", [[5, 5, 5], [5, 2, 0]])
@pytest.mark.parametrize("path", [plain, fast])
def test_every_path_equals_the_loops_with_gradients(path: Callable[..., Tensor], lengths: list[int]) -> None:
    expected = outputs_and_gradients(partial(by_loops, lengths=lengths), tensors())
    assert_all_same(outputs_and_gradients(partial(path, lengths=torch.tensor(lengths)), tensors()), expected)


@given(
    queries=st.integers(0, 9),
    slots=st.integers(1, 7),
    block=st.integers(1, 300),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_blocks_of_any_size_equal_the_reference(queries: int, slots: int, block: int, dtype: torch.dtype) -> None:
    def in_blocks(q: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, v: Tensor) -> Tensor:
        return blocks.scores(q @ w_q.t(), memory @ w_k.t(), v, block)

    def whole(q: Tensor, memory: Tensor, w_q: Tensor, w_k: Tensor, v: Tensor) -> Tensor:
        return reference.scores(q, memory, (w_q, w_k, v))

    given_ = tensors(queries, slots, dtype=dtype)
    expected = outputs_and_gradients(whole, [t.double() for t in given_])
    assert_all_same(outputs_and_gradients(in_blocks, given_), expected)


def test_many_pairs_go_in_blocks_and_one_query_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(choose, "_LARGEST", 1)
    monkeypatch.setattr(
        choose.blocks, "scores", lambda q, *rest: asked.append(q.shape[1]) or reference.scores(q, *rest)
    )
    monkeypatch.setattr(reference, "scores", lambda q, keys, v: (q[:, :, None] + keys[:, None]).tanh() @ v)
    for count in (4, 1):
        fast(*tensors(count))
    assert asked == [4]


def test_what_the_blocks_keep_does_not_grow_with_the_pairs() -> None:
    def kept(length: int) -> int:
        sizes: list[int] = []
        q, keys, v = (
            torch.randn(1, length, A, requires_grad=True),
            torch.randn(1, length, A, requires_grad=True),
            torch.randn(A),
        )
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
            blocks.scores(q, keys, v)
        return sum(sizes)

    assert kept(80) <= 2 * kept(40)


def test_weights_add_up_to_one_over_what_is_real() -> None:
    p = fast(*tensors(), torch.tensor([5, 2, 0]))
    assert_same(p.sum(-1)[:2], torch.ones(2, 4, dtype=torch.float64))
    assert not p[1, :, 2:].any()
    assert not p[2].any()


def test_mixed_precision_gives_nearly_the_same() -> None:
    given_ = tensors(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        seen = fast(*given_)
    assert (seen.float() - plain(*given_)).norm() < 0.03 * plain(*given_).norm()
