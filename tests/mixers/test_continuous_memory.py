"""Attention with a continuous memory: fits, limits, densities, stability, cost and refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.mixers.modules import WIDTH, applied, built, some
from torch import Tensor

from qkv.costs.cost import cost
from qkv.mixers.registry import build_branch
from qkv.ops.sparse import continuous_memory as ops
from qkv.spec.branches import Attention
from qkv.spec.errors import SpecError
from qkv.spec.masks import Causal, Window
from qkv.spec.mixers.continuous_memory import ContinuousMemory
from qkv.spec.model import Model
from qkv.spec.parts import Rope

NEVER = -60.0
"""Bias of a variance that is almost 0."""


def signal(b: Tensor, times: Tensor, width: float) -> Tensor:
    """X̄ at times, (number of times, features)."""
    centres = (torch.arange(b.shape[0], dtype=torch.float64) + 0.5) / b.shape[0]
    return torch.exp(-((times[:, None] - centres) ** 2) / (2 * width**2)) @ b


def middles(count: int) -> Tensor:
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


# The fit.


def test_as_many_narrow_functions_as_positions_reproduce_each_position() -> None:
    x = noise(7, 3)
    for width, worst in ((0.2 / 7, 1e-9), (0.5 / 7, 1e-9)):
        fit = ops.fit(7, width, segment=7, samples=7, contraction=0.5, ridge=1e-12)
        torch.testing.assert_close(signal(fit.positions[:7].T @ x, middles(7), width), x, atol=worst, rtol=0)
    smooth = ops.fit(7, 0.2 / 7, segment=7, samples=7, contraction=0.5, ridge=1.0)
    torch.testing.assert_close(signal(smooth.positions[:7].T @ x, middles(7), 0.2 / 7), x / 2, atol=1e-4, rtol=0)


def test_the_older_signal_moves_to_the_left_and_a_segment_follows() -> None:
    """A slow signal that is cut at τ, its parts given as two segments, is whole again."""
    width, tau, size = 1.5 / 40, 0.7, 60
    fit = ops.fit(40, width, size, samples=80, contraction=tau, ridge=1e-6)
    old, new = (torch.sin(5 * times)[:, None] for times in (tau * middles(size), tau + (1 - tau) * middles(size)))
    b = ops.contracted(ops.fitted(fit.positions[:size], old), fit) + ops.fitted(fit.positions[size:], new)
    times = middles(200)
    torch.testing.assert_close(signal(b, times, width), torch.sin(5 * times)[:, None], atol=0.01, rtol=0)


@pytest.mark.parametrize("unstable", [False, True])
def test_no_signal_grows_without_bounds(unstable: bool) -> None:
    """Few samples and almost no penalty would let it grow; sensible settings are left as the equation has them."""
    ridge, samples, width = (1e-8, 16, 0.1 / 16) if unstable else (0.1, 32, 0.75 / 16)
    fit = ops.fit(16, width, segment=4, samples=samples, contraction=0.95, ridge=ridge)
    times = torch.cat((0.95 * middles(samples), 0.95 + 0.05 * middles(4)))
    f = signal(torch.eye(16, dtype=torch.float64), times, width).T
    old = signal(torch.eye(16, dtype=torch.float64), middles(samples), width)
    gram = f @ f.T + ridge * torch.eye(16, dtype=torch.float64)
    kept = torch.linalg.solve(gram, f[:, :samples] @ old)
    assert (torch.linalg.matrix_power(kept, 50).norm() > 1e3) == unstable
    assert torch.linalg.matrix_power(fit.kept, 50).norm() < 1e3
    assert torch.allclose(fit.kept, kept) != unstable


# Densities.


def test_expectations_are_integrals() -> None:
    fit = ops.fit(5, 0.17, segment=2, samples=5, contraction=0.5, ridge=0.1)
    times = torch.linspace(-6, 7, 200_001, dtype=torch.float64)
    for location, variance in ((0.3, 0.02), (0.9, 0.5), (0.0, 1e-4)):
        p = torch.exp(-((times - location) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)
        integrals = torch.trapezoid(p[:, None] * signal(torch.eye(5, dtype=torch.float64), times, 0.17), times, dim=0)
        found = ops.expected(torch.tensor(location), torch.tensor(variance), fit)
        torch.testing.assert_close(found, integrals, atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("place", [0.2, 0.5, 0.95])
def test_a_narrow_density_reads_the_fitted_signal_at_its_place(place: float) -> None:
    """The last position of the second segment, beside the attention to its window."""
    m = built(ContinuousMemory(num_heads=1, segment=5, num_basis=6, ridge=0.01))
    m.density.zero_()
    m.density_bias.copy_(torch.tensor([[math.log(place / (1 - place)), NEVER]]))
    x = some(1, 10)
    b = ops.fitted(m.fit.positions[:5], x[0, :5])
    value = signal(b, torch.tensor([place], dtype=torch.float64), 0.75 / 6) @ m.memory.weight[WIDTH:].T
    near, expected = window_attention(m, x), value[0] @ m.output.weight.T
    torch.testing.assert_close(applied(m, x)[0, -1] - near[0, -1], expected)


@torch.no_grad()
def test_densities_are_side_by_side_at_first() -> None:
    m: Any = build_branch(ContinuousMemory(num_heads=4), WIDTH)
    torch.testing.assert_close(m.density_bias[:, 0].sigmoid(), torch.tensor([0.125, 0.375, 0.625, 0.875]))
    deviations = torch.nn.functional.softplus(m.density_bias[:, 1]).sqrt()
    torch.testing.assert_close(deviations, torch.full((4,), 0.125))


# What it is equal to, and what is seen.


def window_attention(m: Any, x: Tensor) -> Tensor:
    """Output of the local attention of ``m`` alone."""
    mask = Causal() & Window(size=m.spec.reach)
    plain = built(Attention(num_heads=m.spec.num_heads, mask=mask, relative=Rope()))
    plain.load_state_dict({name: p for name, p in m.state_dict().items() if name.startswith(("qkv", "output"))})
    return applied(plain, x)


@torch.no_grad()
def test_rows_of_one_segment_are_window_attention() -> None:
    m = built(ContinuousMemory(num_heads=2, segment=5, num_basis=3))
    assert torch.equal(applied(m, some(2, 5)), window_attention(m, some(2, 5)))
    longer, near = applied(m, some(2, 9)), window_attention(m, some(2, 9))
    assert torch.equal(longer[:, :5], near[:, :5])
    assert ((longer - near)[:, 5:].abs().amax((0, 2)) > 1e-4).all()


def test_memory_is_of_complete_segments_before_the_own() -> None:
    """Without a path through the window, only they have a gradient."""
    m, x = built(ContinuousMemory(num_heads=2, segment=4, num_basis=3)), some(1, 11).requires_grad_()
    m.qkv.weight.data[2 * WIDTH :] = 0.0
    for i, seen in ((3, 0), (5, 4), (7, 4), (8, 8), (10, 8)):
        m.density.data[:] = 0.0
        (grad,) = torch.autograd.grad(applied(m, x)[0, i].sum(), x)
        assert [j for j in range(11) if grad[0, j].abs().max() > 1e-12] == list(range(seen))


def test_gradients_of_the_memory_are_right() -> None:
    fit = ops.fit(3, 0.3, segment=2, samples=4, contraction=0.6, ridge=0.1)
    q, pairs, weight, bias = noise(1, 2, 5, 2), noise(1, 1, 5, 3), noise(2, 2, 3), noise(2, 2)

    def contexts(q: Tensor, pairs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.whole(q, pairs, ops.Density(weight, bias), fit, 0.7)

    assert torch.autograd.gradcheck(contexts, [t.requires_grad_() for t in (q, pairs, weight, bias)])


# Cost, state and refusals.


def test_the_cost_is_that_of_window_attention_and_of_the_memory() -> None:
    def flops(branch: str) -> int:
        fields = {"width": 16, "context_length": 64, "frontend": {"kind": "text", "vocab_size": 8}}
        found = cost(Model.parse({**fields, "blocks": [{"branches": [branch]}]}), 1, 64).parts
        return found[branch.partition("(")[0]].flops

    own = flops("continuous_memory(2, segment=8, num_basis=5)")
    near = flops("attention(2, mask='causal & window(8)', relative=rope)")
    projected = 2 * 64 * 16 * 32
    taken_in = 64 * 2 * 2 * 5 * 16 + 7 * 2 * 2 * 5 * 5 * 16
    reading = 8 * 2 * 2 * 2 * 5 * 8 + 64 * 2 * (2 * 2 * 8 + 2 * 5 * 8)
    assert own - near == projected + taken_in + reading


def test_the_state_stops_growing_with_the_window() -> None:
    m = build_branch(ContinuousMemory(num_heads=2, segment=8, num_basis=5, num_kv_heads=1), WIDTH)
    assert m.state_bytes(4000) == 4 * (8 * 12 + 2 * 5 * 12)
    assert not m.rewindable


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"segment": 0}, "segment: 0 given, but it should be greater than 0"),
        ({"num_basis": 0}, "num_basis: 0 given, but it should be greater than 0"),
        ({"contraction": 1.0}, "contraction: 1.0 given, but it should be less than 1"),
        ({"contraction": 0.0}, "contraction: 0.0 given, but it should be greater than 0"),
        ({"ridge": 0.0}, "ridge: 0.0 given, but it should be greater than 0"),
        ({"segment": 8, "window": 7}, "window: a window of 7 positions is shorter than a segment of 8; give 8 or more"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as error:
        ContinuousMemory.parse(fields)
    assert sentence in str(error.value)


def test_heads_of_an_odd_number_of_features_are_not_rotated() -> None:
    fields = {"width": 9, "frontend": {"kind": "text", "vocab_size": 8}}
    with pytest.raises(
        SpecError, match=r"RoPE rotates pairs of features, but a head has 3; give an even number, or base"
    ):
        Model.parse({**fields, "blocks": [{"branches": ["continuous_memory(3)"]}]})
    assert Model.parse({**fields, "blocks": [{"branches": ["continuous_memory(3, base=null)"]}]}).width == 9
