"""Gated attention units: limits, division by the positions seen, state, cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.mixers.modules import applied, built, following, some
from torch import Tensor

from qkv.costs.cost import cost
from qkv.spec.branches import Branch
from qkv.spec.errors import SpecError
from qkv.spec.heads import ClassificationHead
from qkv.spec.mixers.gated_attention import GAU, MixedChunkAttention
from qkv.spec.model import Block, Model, Text


def twins(chunk: int, **fields: Any) -> tuple[Any, Any]:
    """A unit, and one with chunks that has its weights and other ones across chunks."""
    one, mixed = built(GAU(key_dim=4, **fields)), built(MixedChunkAttention(key_dim=4, chunk=chunk, **fields))
    for name in ("gated.input", "output"):
        mixed.get_submodule(name).load_state_dict(one.get_submodule(name).state_dict())
    for name in ("scale", "offset"):
        getattr(mixed.gated, name).data[:2] = getattr(one.gated, name).data
    return one, mixed


@pytest.mark.parametrize("base", [None, 100.0])
@pytest.mark.parametrize("chunk", [7, 8, 50])
def test_a_chunk_as_long_as_the_row_is_the_unit_alone(chunk: int, base: float | None) -> None:
    one, mixed = twins(chunk, base=base)
    x = some(3, 7)
    torch.testing.assert_close(applied(mixed, x), applied(one, x), rtol=1e-12, atol=1e-12)
    assert (applied(twins(6, base=base)[1], x) - applied(one, x)).abs().max() > 1e-4


def test_without_order_the_linear_part_is_over_all_chunks_and_may_be_0() -> None:
    one, mixed = twins(20, mask="full")
    x = some(3, 7)
    assert (applied(mixed, x) - applied(one, x)).abs().max() > 1e-4
    mixed.gated.scale.data[2], mixed.gated.offset.data[2] = 0, 0
    torch.testing.assert_close(applied(mixed, x), applied(one, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("part", [GAU(key_dim=4, base=None), MixedChunkAttention(key_dim=4, base=None, chunk=3)])
def test_equal_scores_give_the_mean_of_the_values_seen(part: GAU) -> None:
    """q = k = 1: every relu(q · k / √S)² is S, and every q' · k' / √S is √S."""
    branch, x = built(part), some(2, 7)
    branch.gated.scale.data.zero_()
    branch.gated.offset.data.fill_(1.0)
    u, v, _ = branch.gated(x)
    chunk = getattr(part, "chunk", 7)
    read = []
    for i in range(7):
        first = i // chunk * chunk
        near, far = v[:, first : i + 1].mean(1), v[:, :first].mean(1) if first else torch.zeros_like(v[:, 0])
        read.append(4 * near + 2 * far)
    expected = branch.output(u * torch.stack(read, 1))
    torch.testing.assert_close(applied(branch, x), expected, rtol=1e-12, atol=1e-12)


def test_one_call_of_many_positions_equals_single_steps() -> None:
    """Calls that begin anywhere in a chunk and end several chunks later."""
    branch = built(MixedChunkAttention(key_dim=4, chunk=3))
    x = some(2, 20)
    for sizes in ([1] * 20, [2, 11, 7], [3, 3, 14], [20]):
        outs, state, first = [], branch.init_state(2), 0
        for size in sizes:
            y, state = branch(x[:, first : first + size], following(first, size, 2), state)
            outs.append(y)
            first += size
        torch.testing.assert_close(torch.cat(outs, 1), applied(branch, x), rtol=1e-11, atol=1e-11)
        assert not state[1][:, 20 % 3 :].any(), "empty slots of the current chunk are 0"


def test_the_state_of_chunks_does_not_grow_and_that_of_the_unit_does() -> None:
    one, mixed = built(GAU(key_dim=4)), built(MixedChunkAttention(key_dim=4, chunk=3))
    assert one.state_bytes(200) == 2 * one.state_bytes(100) == 200 * (4 + 24) * 8
    assert mixed.state_bytes(200) == mixed.state_bytes(1) == (4 * 24 + 3 * (4 + 24)) * 8


def forward_flops(branch: Branch, length: int) -> int:
    model = Model(
        width=8,
        context_length=1024,
        frontend=Text(vocab_size=7),
        blocks=(Block(branches=(branch,)),),
        head=ClassificationHead(num_classes=2),
    )
    return cost(model, 1, length).forward_flops


def test_chunks_make_the_cost_linear() -> None:
    mixed, one = MixedChunkAttention(key_dim=8, chunk=64), GAU(key_dim=8)
    assert forward_flops(mixed, 1024) < 2.05 * forward_flops(mixed, 512)
    assert forward_flops(one, 1024) > 3 * forward_flops(one, 512)


def test_half_of_each_chunk_is_hidden_by_order() -> None:
    model = Model(
        width=8,
        context_length=24,
        frontend=Text(vocab_size=7),
        blocks=(Block(branches=(MixedChunkAttention(key_dim=2, hidden=5, chunk=6),)),),
    )
    assert cost(model, 3).total.masked == 3 * 2 * (2 + 5) * (4 * 6 * 5 // 2)


def test_an_odd_key_cannot_be_rotated() -> None:
    with pytest.raises(
        SpecError, match="RoPE rotates pairs of features, but a key has 5; give an even number, or base none"
    ):
        GAU.parse({"key_dim": 5})
    assert GAU(key_dim=5, base=None).key_dim == 5


def test_gradients_reach_every_weight_and_are_finite_where_nothing_is_positive() -> None:
    """All squares are 0 if no score is positive."""
    branch = built(GAU(key_dim=2, base=None))
    branch.gated.scale.data.zero_()
    branch.gated.offset.data[0], branch.gated.offset.data[1] = 1.0, -1.0
    y: Tensor = applied(branch, some(2, 5))
    assert torch.equal(y, branch.output.bias.expand_as(y))
    y.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in branch.parameters())
