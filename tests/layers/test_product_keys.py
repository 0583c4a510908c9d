"""Product keys against a search of all pairs of sub-keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.costs.cost import cost
from qkv.layers.context import Context
from qkv.mixers.registry import build_branch
from qkv.ops.sparse.product_keys import largest, read, spread
from qkv.spec.errors import SpecError
from qkv.spec.model import Block, Model, Text
from qkv.spec.position_wise.product_keys import ProductKeyMemory


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("count", "k"), [(9, 1), (9, 4), (9, 9), (9, 20), (5, 25), (1, 1)])
def test_the_largest_are_those_of_all_pairs(count: int, k: int) -> None:
    q, keys = normal(2, 3, 4, 6), normal(4, 2, count, 3, seed=1)
    scores, index = largest(q, keys, k)
    pairs = [(i, j) for i in range(count) for j in range(count)]
    every = [[keys[h, 0, i].tolist() + keys[h, 1, j].tolist() for i, j in pairs] for h in range(4)]
    full = torch.einsum("bnhd,hsd->bnhs", q, torch.tensor(every, dtype=torch.float64))
    expected, places = full.topk(k)
    torch.testing.assert_close(scores, expected)
    assert torch.equal(index, places)


def test_a_fused_sum_of_values_is_the_sum_of_values() -> None:
    scores, values = normal(2, 3, 4, 5).requires_grad_(), normal(50, 6, seed=1).requires_grad_()
    index = torch.randint(50, (2, 3, 4, 5), generator=torch.Generator().manual_seed(0))
    plain = (scores.softmax(-1)[..., None] * values[index]).sum((-3, -2))
    found = read(scores, index, values)
    torch.testing.assert_close(found, plain)
    seen = normal(2, 3, 6, seed=2)
    for one, other in zip(
        torch.autograd.grad((found * seen).sum(), (scores, values)),
        torch.autograd.grad((plain * seen).sum(), (scores, values)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_weights_of_all_slots_are_those_of_the_heads() -> None:
    scores, values = normal(2, 3, 4, 5), normal(50, 6, seed=1)
    index = torch.randint(50, (2, 3, 4, 5), generator=torch.Generator().manual_seed(0))
    expected = torch.zeros(2, 3, 50).double()
    for b, n, h, i in torch.cartesian_prod(*map(torch.arange, scores.shape)).tolist():
        expected[b, n, index[b, n, h, i]] += scores[b, n, h].softmax(-1)[i]
    torch.testing.assert_close(spread(scores, index, 50), expected)
    torch.testing.assert_close(spread(scores, index, 50) @ values, read(scores, index, values))


def test_values_that_are_not_read_have_no_gradient() -> None:
    branch: Any = build_branch(ProductKeyMemory(num_keys=20, top_k=2, num_heads=3), 8)
    branch(torch.randn(1, 4, 8), Context(torch.arange(4)[None]))[0].sum().backward()
    assert 2 <= int(branch.values.grad.any(-1).sum()) <= 4 * 3 * 2


def test_cost_counts_what_a_position_reads() -> None:
    part = ProductKeyMemory(num_keys=64, top_k=8, num_heads=2)
    counted = cost(Model(width=32, frontend=Text(vocab_size=9), blocks=(Block(branches=(part,)),)), length=4)
    assert counted.parameters - counted.active_parameters == 32 * (64 * 64 - 16)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"key_dim": 5}, "5 features have no two equal halves; make the number even"),
        ({"num_keys": 3, "top_k": 10}, "10 values cannot be read of 3 × 3; give at most 9"),
    ],
)
def test_bad_sizes_are_refused_in_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        ProductKeyMemory.parse(fields)
