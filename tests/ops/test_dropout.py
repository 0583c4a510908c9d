"""Dropout against its definition."""

from __future__ import annotations

import math

import pytest
import torch

from qkv.ops.dropout import dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_share_is_dropped_and_the_rest_grows(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    y = dropout(torch.ones(200, 501, dtype=dtype), p)
    kept = float((y != 0).float().mean())
    assert abs(kept - (1 - p)) < 4 * math.sqrt(p * (1 - p) / y.numel())
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - p)), rtol=1e-2, atol=0)
    neighbours = (y.flatten()[1:] != 0) & (y.flatten()[:-1] != 0)
    assert abs(float(neighbours.float().mean()) - (1 - p) ** 2) < 0.01


def test_the_gradient_passes_where_the_number_stayed() -> None:
    x = torch.randn(7, 9, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.4)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (y / x).detach())


def test_it_follows_the_generator_and_rests_in_eval() -> None:
    x = torch.ones(3, 5)
    torch.manual_seed(1)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(1)
    assert torch.equal(dropout(x, 0.5), first)
    assert not torch.equal(first, second)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(torch.empty(0, 3), 0.5).shape == (0, 3)
