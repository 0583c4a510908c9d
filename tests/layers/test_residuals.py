"""How what a branch computed joins what went into it, and what is left out in training."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from qkv.layers.residuals import build_residual
from qkv.spec import parts as spec


def pair(batch: int = 4, length: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, batch, length, 6, generator=generator)
    return x, y


def test_each_kind_is_its_formula() -> None:
    x, y = pair()
    assert torch.equal(build_residual(spec.Add(), 6)(x, y), x + y)
    assert torch.equal(build_residual(spec.NoResidual(), 6)(x, y), y)
    scaled, gated = build_residual(spec.Scaled(initial=0.25), 6), build_residual(spec.Gated(initial=0.5), 6)
    torch.testing.assert_close(scaled(x, y), x + 0.25 * y)
    torch.testing.assert_close(gated(x, y), x + torch.tanh(torch.tensor(0.5)) * y)
    scaled.weight.data = torch.arange(6.0)  # type: ignore[union-attr]
    torch.testing.assert_close(scaled(x, y), x + torch.arange(6.0) * y)


def test_resurrecting_gates_follow_the_input() -> None:
    x, y = pair()
    x[0, 0, :3] = torch.tensor([3.0, -3.0, 0.1])  # gates of 0.95, 0.05 and 0.52
    seen = build_residual(spec.Resurrecting(threshold=0.3), 6)(x, y)
    for place in torch.cartesian_prod(*map(torch.arange, x.shape)).tolist():
        value, read = float(x[tuple(place)]), float(y[tuple(place)])
        p = 1 / (1 + math.exp(-value))
        expected = (p * read if p > 0.3 else 0.0) + ((1 - p) * value if 1 - p > 0.3 else 0.0)
        assert float(seen[tuple(place)]) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert float(seen[0, 0, 0]) == pytest.approx(0.9526 * float(y[0, 0, 0]), rel=1e-3)


def test_what_is_learned() -> None:
    shapes = {
        part.kind: [tuple(p.shape) for p in build_residual(part, 6).parameters()]
        for part in (spec.Add(), spec.Scaled(), spec.Gated())
    }
    assert shapes == {"add": [], "scaled": [(6,)], "gated": [()]}


def test_a_gate_that_starts_at_zero_starts_as_the_identity() -> None:
    x, y = pair()
    gated = build_residual(spec.Gated(), 6)
    assert torch.equal(gated(x, y), x)
    gated(x, y).sum().backward()
    assert gated.gate.grad is not None  # type: ignore[union-attr]
    assert float(gated.gate.grad) == pytest.approx(float(y.sum()), rel=1e-5)  # type: ignore[union-attr,arg-type]


@pytest.mark.parametrize("options", [{"dropout": 0.7}, {"drop_path": 0.7}, {"dropout": 0.5, "drop_path": 0.5}])
def test_nothing_is_dropped_in_eval(options: dict[str, float]) -> None:
    x, y = pair()
    assert torch.equal(build_residual(spec.Add(), 6, **options).eval()(x, y), x + y)


def test_dropout_keeps_the_expectation_feature_by_feature() -> None:
    torch.manual_seed(0)
    zeros, y = torch.zeros(1, 20000, 1), torch.ones(1, 20000, 1)
    seen = build_residual(spec.Add(), 1, dropout=0.3)(zeros, y)
    assert sorted(set(seen.flatten().tolist())) == pytest.approx([0.0, 1 / 0.7], rel=1e-5)
    assert float(seen.mean()) == pytest.approx(1.0, abs=0.02)


def test_drop_path_leaves_out_whole_rows_and_keeps_the_expectation() -> None:
    torch.manual_seed(0)
    x, y = torch.zeros(20000, 2, 3), torch.ones(20000, 2, 3)
    seen = build_residual(spec.Add(), 3, drop_path=0.2)(x, y)
    assert bool((seen == seen[:, :1, :1]).all()), "a row is kept or left out as a whole"
    assert sorted(set(seen.flatten().tolist())) == pytest.approx([0.0, 1.25])
    assert float(seen.mean()) == pytest.approx(1.0, abs=0.02)


def test_a_dropped_row_is_what_went_in_and_gets_no_gradient() -> None:
    torch.manual_seed(1)
    x, y = pair(batch=16)
    y.requires_grad_()
    seen = build_residual(spec.Scaled(initial=1.0), 6, drop_path=0.5)(x, y)
    seen.sum().backward()
    dropped = (seen == x).flatten(1).all(1)
    assert 0 < int(dropped.sum()) < 16
    assert y.grad is not None
    assert not y.grad[dropped].any()
    assert bool((y.grad[~dropped] == 2.0).all())
