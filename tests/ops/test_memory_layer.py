"""Reading learned slots: against loops over single slots, against a feed-forward net, and as a lookup."""

from __future__ import annotations

import math

import pytest
import torch
from tests.mixers.modules import applied, built, some
from tests.ops.compare import assert_all_same, assert_same, outputs_and_gradients
from torch import Tensor

from qkv.layers.position_wise.activations import ACTIVATIONS
from qkv.ops.linear.memory_layer import memory, weights
from qkv.spec.branches import FeedForward
from qkv.spec.position_wise.memory_layer import MemoryLayer


def tensors(heads: int, slots: int = 6, size: int = 3, width: int = 5) -> list[Tensor]:
    """q (B, N, H, k), K (H, S, k), V (D, H·S)."""
    generator = torch.Generator().manual_seed(heads)
    shapes = [(2, 4, heads, size), (heads, slots, size), (width, heads * slots)]
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


def by_loops(q: Tensor, keys: Tensor, values: Tensor, name: str) -> Tensor:
    heads, slots, size = keys.shape
    rows = []
    for vectors in q.flatten(0, 1):
        y = torch.zeros_like(values[:, 0])
        for h in range(heads):
            scores = torch.stack([(vectors[h] * keys[h, s]).sum() for s in range(slots)])
            p = (scores / math.sqrt(size)).softmax(0) if name == "softmax" else ACTIVATIONS[name](scores)
            y = y + sum(p[s] * values[:, h * slots + s] for s in range(slots))
        rows.append(y)
    return torch.stack(rows).view(*q.shape[:2], -1)


@pytest.mark.parametrize("name", ["softmax", "relu", "gelu"])
@pytest.mark.parametrize("heads", [1, 3])
def test_it_equals_the_loops_with_gradients(heads: int, name: str) -> None:
    expected = outputs_and_gradients(lambda *t: by_loops(*t, name), tensors(heads))
    assert_all_same(
        outputs_and_gradients(lambda q, k, v: memory(weights(q, k, ACTIVATIONS.get(name)), v), tensors(heads)), expected
    )


@pytest.mark.parametrize("name", ["relu", "gelu", "silu"])
def test_without_a_query_map_an_activation_makes_it_a_feed_forward_net(name: str) -> None:
    """W_q = I and φ for the softmax: φ(x K^T) V, numbers and gradients equal to the branch with those weights."""
    ours = built(MemoryLayer(num_slots=20, activation=name))  # type: ignore[arg-type]
    net = built(FeedForward(hidden=20, activation=name, bias=False))  # type: ignore[arg-type]
    ours.query.weight.data = torch.eye(12, dtype=torch.float64)
    net.up.weight.data, net.down.weight.data = ours.keys.data.clone(), ours.values.weight.data.clone()
    x, y = some().requires_grad_(), some().requires_grad_()
    seen, expected = applied(ours, x), applied(net, y)
    torch.testing.assert_close(seen, expected)
    seen.pow(2).sum().backward()
    expected.pow(2).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(ours.keys.grad, net.up.weight.grad)


def test_a_sharp_query_reads_the_slot_of_its_key() -> None:
    keys = torch.nn.functional.normalize(torch.randn(1, 7, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    asked = torch.tensor([4, 0, 6])
    p = weights(500 * keys[0, asked][:, None], keys, None)
    assert_same(p[:, 0], torch.eye(7)[asked], 1e-4)
    assert_same(memory(p, torch.arange(7.0)[None])[:, 0], asked.float(), 1e-3)


def test_weights_of_a_head_add_up_to_one() -> None:
    q, keys, _ = tensors(3)
    assert_same(weights(q, keys, None).sum(-1), torch.ones(2, 4, 3, dtype=torch.float64))
