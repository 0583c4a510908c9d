"""Multi-head attention with weights set by hand equals a given sparse matrix over positions.

Inputs are [content, one-hot position]. A head whose query i is √Dk log A_ij over the features j, and whose key j is
the unit vector j, has the weights A: softmax(log A_i) = A_i. The output projection adds heads with any factors, so that
every sparse matrix is reached (Likhosherstov et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.mixers.modules import applied
from torch import Tensor

from qkv.layers.context import Context
from qkv.layers.tap import Recorder
from qkv.mixers.masks import build_mask
from qkv.mixers.registry import build_branch
from qkv.ops.masks import Sites
from qkv.spec.branches import Attention
from qkv.spec.masks import Blocks, Causal, Full, Mask, Strided, Window

N, CONTENT = 12, 5
WIDTH = CONTENT + N
NEVER = -80.0
"""Logarithm of the weight of a pair that is not in the pattern: e^-80 is below the precision of the sums."""


def sparse(seed: int, per_row: int) -> Tensor:
    """Rows of ``per_row`` random weights that sum to 1, at random positions."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(N, N, generator=generator).argsort(1)[:, :per_row]
    weights = torch.rand(N, per_row, generator=generator, dtype=torch.float64) + 0.1
    return torch.zeros(N, N, dtype=torch.float64).scatter(1, chosen, weights / weights.sum(1, keepdim=True))


def of_mask(mask: Mask) -> Tensor:
    """Equal weights of all keys that a mask shows."""
    steps = torch.arange(N)[None]
    seen = Sites(steps, steps).visible(build_mask(mask), N)[0, 0].double()
    return seen / seen.sum(1, keepdim=True)


def set_by_hand(patterns: list[Tensor], factors: list[float]) -> Any:
    """Attention whose head h has the weights ``patterns[h]``, and whose output adds the heads with ``factors``."""
    heads = len(patterns)
    part = Attention(num_heads=heads, head_dim=N, value_dim=CONTENT, mask=Full(), bias=False)
    branch = build_branch(part, WIDTH).double()
    q, k, v = (torch.zeros(heads, size, WIDTH, dtype=torch.float64) for size in (N, N, CONTENT))
    for h, pattern in enumerate(patterns):
        q[h, :, CONTENT:] = math.sqrt(N) * pattern.log().clamp(min=NEVER).t()
        k[h, :, CONTENT:] = torch.eye(N)
        v[h, :, :CONTENT] = torch.eye(CONTENT)
    branch.qkv.weight.data = torch.cat([t.flatten(0, 1) for t in (q, k, v)])
    out = torch.zeros(WIDTH, heads, CONTENT, dtype=torch.float64)
    out[:CONTENT] = torch.tensor(factors)[None, :, None] * torch.eye(CONTENT)[:, None]
    branch.output.weight.data = out.flatten(1)
    return branch


def placed(rows: int = 2) -> Tensor:
    """Random content with the one-hot position of each row's vectors."""
    content = torch.randn(rows, N, CONTENT, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return torch.cat((content, torch.eye(N, dtype=torch.float64).expand(rows, -1, -1)), -1)


PATTERNS: dict[str, list[Tensor]] = {
    "one position each": [
        torch.eye(N, dtype=torch.float64)[torch.randperm(N, generator=torch.Generator().manual_seed(3))]
    ],
    "random, two per row": [sparse(1, 2)],
    "four heads of one to four per row": [sparse(seed, seed) for seed in (1, 2, 3, 4)],
    "those of masks": [of_mask(m) for m in (Causal(), Window(size=2), Blocks(size=3), Causal() & Strided(stride=4))],
}


@pytest.mark.parametrize("name", PATTERNS)
def test_attention_is_any_sparse_matrix(name: str) -> None:
    patterns = PATTERNS[name]
    factors = [1.0, -2.0, 0.5, 3.0][: len(patterns)]
    branch, x = set_by_hand(patterns, factors), placed()
    whole = sum(factor * pattern for factor, pattern in zip(factors, patterns, strict=True))
    y = applied(branch, x)
    assert (y[..., :CONTENT] - whole @ x[..., :CONTENT]).abs().max() < 1e-10
    assert not y[..., CONTENT:].any()


def test_the_weights_that_a_tap_sees_are_the_patterns() -> None:
    patterns = PATTERNS["four heads of one to four per row"]
    branch, recorder = set_by_hand(patterns, [1.0] * 4), Recorder("weights")
    branch.assign_name("branch")
    branch(placed(1), Context(torch.arange(N)[None], tap=recorder))
    weights = recorder["branch.weights"]
    assert (weights[0] - torch.stack(patterns)).abs().max() < 1e-10


@pytest.mark.parametrize("mask", [Causal(), Window(size=2), Blocks(size=3)], ids=str)
def test_a_pattern_by_weights_is_the_one_by_a_mask(mask: Mask) -> None:
    """Queries of 0 give all visible keys the same weight."""
    by_weights, by_mask = set_by_hand([of_mask(mask)], [1.0]), set_by_hand([of_mask(mask)], [1.0])
    masked = build_branch(by_mask.spec.changed(mask=mask), WIDTH).double()
    masked.load_state_dict(by_mask.state_dict())
    masked.qkv.weight.data[:N] = 0
    x = placed()
    torch.testing.assert_close(applied(masked, x), applied(by_weights, x), rtol=0, atol=1e-10)


def test_two_features_of_a_head_pick_one_position_each() -> None:
    """Keys on a circle, each query in the direction of its key: H heads gather H given positions per row."""
    picks = [torch.randperm(N, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    angle = 2 * math.pi * torch.arange(N, dtype=torch.float64) / N
    circle, sharp = torch.stack((angle.cos(), angle.sin())), 60 * math.sqrt(2) / (1 - math.cos(2 * math.pi / N))
    part = Attention(num_heads=3, head_dim=2, value_dim=CONTENT, mask=Full(), bias=False)
    branch: Any = build_branch(part, WIDTH).double()
    weight = torch.zeros(3 * (2 + 2 + CONTENT), WIDTH, dtype=torch.float64)
    for h, pick in enumerate(picks):
        weight[2 * h : 2 * h + 2, CONTENT:] = sharp * circle[:, pick]
        weight[6 + 2 * h : 8 + 2 * h, CONTENT:] = circle
        weight[12 + CONTENT * h : 12 + CONTENT * (h + 1), :CONTENT] = torch.eye(CONTENT)
    branch.qkv.weight.data = weight
    branch.output.weight.data = torch.cat([torch.eye(WIDTH, CONTENT, dtype=torch.float64)] * 3, 1)
    x = placed()
    expected = sum(x[:, pick, :CONTENT] for pick in picks)
    torch.testing.assert_close(applied(branch, x)[..., :CONTENT], expected, rtol=0, atol=1e-10)


def permuted(call: Callable[[Tensor], Tensor]) -> Tensor:
    """Largest difference between the output of permuted positions and the permuted output."""
    x, order = torch.randn(2, N, WIDTH, dtype=torch.float64), torch.randperm(N)
    return (call(x[:, order]) - call(x)[:, order]).abs().max()


def test_without_positions_attention_knows_no_order() -> None:
    torch.manual_seed(0)
    branch = build_branch(Attention(num_heads=2, head_dim=4, mask=Full()), WIDTH).double()
    ordered = build_branch(Attention(num_heads=2, head_dim=4, mask=Window(size=3)), WIDTH).double()
    assert permuted(lambda x: applied(branch, x)) < 1e-12
    assert permuted(lambda x: applied(ordered, x)) > 1e-3
