"""Random features of the Performer: error against softmax attention, and redrawing of the directions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from qkv.layers.context import Context
from qkv.mixers.linear.feature_maps import Favor, directions
from qkv.models.build import build
from qkv.ops.linear_attention.chunked import linear_attention
from qkv.spec.mixers import linear_attention as spec
from qkv.spec.model import Model

HEADS, DIM = 2, 8


def context() -> Context:
    return Context(torch.arange(5)[None])


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT / math.sqrt(DIM)).masked_fill(torch.ones(16, 16).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ v


def error(features: int, orthogonal: bool = True) -> float:
    """Root mean square error of causal attention over 40 draws of directions."""
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, HEADS, 16, DIM, generator=draw, dtype=torch.float64) for _ in range(3))
    q, k, squares = q / 2, k / 2, []  # the variance of a weight grows as e^|q + k|²
    for seed in range(40):
        part = spec.Favor(num_features=features, orthogonal=orthogonal, seed=seed)
        phi = Favor(part, HEADS, DIM).double()
        out, _ = linear_attention(phi(q, context(), True), phi(k, context(), False), v)
        squares.append((out - exact(q, k, v)).square().mean())
    return float(torch.stack(squares).mean().sqrt())


def test_the_error_falls_with_the_root_of_the_number_of_features() -> None:
    """A factor of 16 in features is a factor of 4 in error, by the central limit theorem."""
    few, many = error(64), error(1024)
    assert 3.2 < few / many < 5.0


def test_orthogonal_directions_have_less_error() -> None:
    assert error(DIM) < 0.95 * error(DIM, orthogonal=False)


def test_directions_are_orthogonal_in_groups_with_lengths_of_gaussian_vectors() -> None:
    found = directions(spec.Favor(num_features=3 * DIM), 100, DIM, 5).double()
    for group in found.split(DIM, 1):
        products = group @ group.mT
        off = products - torch.diag_embed(products.diagonal(dim1=1, dim2=2))
        assert off.abs().max() < 1e-4
    assert found.square().sum(-1).mean() == pytest.approx(DIM, rel=0.05)


def test_new_directions_come_with_training_steps_and_a_resumed_run_draws_the_same() -> None:
    part, x = spec.Favor(num_features=4, redraw=2, seed=3), torch.randn(1, HEADS, 5, DIM)
    phi, other = Favor(part, HEADS, DIM), Favor(part, HEADS, DIM)
    seen = []
    for step in range(4):
        if step == 3:
            other.load_state_dict(phi.state_dict())
        phi(x, context(), True)
        seen.append(phi.directions.clone())
    other(x, context(), True)
    assert torch.equal(seen[0], directions(part, HEADS, DIM, 3))
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(seen[1], seen[2])
    assert not torch.equal(seen[2], seen[3])
    assert torch.equal(seen[3], other.directions)
    phi.eval()
    phi(x, context(), True)
    phi(x, context(), True)
    assert torch.equal(seen[3], phi.directions)


def test_layers_have_directions_of_their_own() -> None:
    spec_of_model = Model.parse(
        {
            "width": 8,
            "num_layers": 2,
            "context_length": 8,
            "frontend": {"kind": "text", "vocab_size": 5},
            "blocks": [{"branches": ["linear_attention(2, features=favor(4))"]}],
        }
    )
    model = build(spec_of_model)
    one, other = (buffer for name, buffer in model.named_buffers() if name.endswith("directions"))
    assert not torch.equal(one, other)
