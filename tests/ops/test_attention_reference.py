"""The reference of attention against loops over single queries in float64, and what the equation promises."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.ops.attention_cases import MASKS, SITES, Case, by_loops
from tests.ops.compare import assert_all_same, assert_same, outputs_and_gradients

from qkv.ops.attention import reference
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import Causal, Explicit, Full, Sites


def assert_equals_loops(case: Case, dtype: torch.dtype = torch.float64) -> None:
    problem, inputs = case.problem(), case.inputs(dtype)
    expected = outputs_and_gradients(lambda q, k, v: by_loops(q, k, v, problem), [t.double() for t in inputs])
    assert_all_same(outputs_and_gradients(lambda q, k, v: reference.attention(q, k, v, problem), inputs), expected)


@pytest.mark.parametrize("mask", MASKS)
def test_every_mask_equals_the_loops(mask: str) -> None:
    assert_equals_loops(Case(mask, queries=8))


@pytest.mark.parametrize("sites", SITES)
@pytest.mark.parametrize("mask", ["full", "causal", "window with sinks", "adjacency by row and head, causal"])
def test_every_kind_of_site_equals_the_loops(mask: str, sites: str) -> None:
    assert_equals_loops(Case(mask, sites, queries=6))


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (4, 1), (6, 2)])
@pytest.mark.parametrize("alibi", [False, True])
def test_heads_and_alibi_equal_the_loops(heads: tuple[int, int], alibi: bool) -> None:
    assert_equals_loops(Case("causal", queries=5, heads=heads, widths=(2, 5), alibi=alibi))


@pytest.mark.parametrize("sites", SITES)
@pytest.mark.parametrize(
    "given",
    [
        {"added": True},
        {"top_k": 1},
        {"top_k": 3, "alibi": True},
        {"values": True},
        {"values": True, "top_k": 2},
        {"softcap": 0.4, "alibi": True},
        {"softcap": 0.4, "added": True, "top_k": 3},
    ],
)
def test_what_is_added_and_chosen_equals_the_loops(given: dict[str, Any], sites: str) -> None:
    for mask in ("causal", "window with sinks", "some see nothing"):
        assert_equals_loops(Case(mask, sites, queries=7).changed(**given))


def test_a_soft_cap_bounds_the_scores_and_a_high_one_leaves_them_alone() -> None:
    """Scores far beyond the cap differ by no more than twice the cap, so no weight is e^(2c) times another."""
    case = Case("full", queries=9, softcap=1.5)
    q, k, v = case.inputs()
    p = reference.weights(1000 * q, k, case.problem())
    assert float((p.amax(-1) / p.amin(-1)).max()) == pytest.approx(math.exp(3.0))
    high, plain = (reference.attention(q, k, v, case.changed(softcap=cap).problem()) for cap in (1e6, None))
    assert_same(high, plain, 1e-9)


@pytest.mark.parametrize("count", [9, 100])
def test_as_many_as_there_are_keys_is_plain_attention(count: int) -> None:
    case = Case("causal", queries=9)
    inputs = case.inputs()
    assert_same(
        reference.attention(*inputs, case.changed(top_k=count).problem()),
        reference.attention(*inputs, case.problem()),
        tolerance=0.0,
    )


def test_one_is_a_hard_lookup_and_its_gradient_reaches_the_key_s_value_alone() -> None:
    case = Case("full", queries=6, heads=(1, 1), top_k=1)
    q, k, v = case.inputs(batch=1)
    best = (q @ k.mT).argmax(-1)[0, 0]
    out, dq, dk, dv = outputs_and_gradients(lambda *t: reference.attention(*t, case.problem()), [q, k, v])
    assert_same(out[0, 0], v[0, 0, best])
    assert not dq.any()
    assert not dk.any()
    assert set(dv[0, 0].any(-1).nonzero().flatten().tolist()) == set(best.tolist())


def test_keys_that_are_not_chosen_have_no_gradient() -> None:
    case = Case("causal", queries=8, heads=(1, 1), top_k=3)
    inputs = case.inputs(batch=1)
    chosen = reference.weights(*inputs[:2], case.problem())[0, 0] > 0
    assert chosen.sum(-1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3]
    leaves = [t.clone().requires_grad_() for t in inputs]
    for n in range(8):
        row = reference.attention(*leaves, case.problem())[0, 0, n]
        _, dk, dv = torch.autograd.grad(row.pow(2).sum(), leaves)
        assert not dk[0, 0, ~chosen[n]].any()
        assert not dv[0, 0, ~chosen[n]].any()
        assert bool(dv[0, 0, chosen[n]].any(-1).all())


def test_single_precision_equals_the_loops_to_its_last_digits() -> None:
    assert_equals_loops(Case("causal window", queries=9, alibi=True), torch.float32)


def test_weights_are_a_distribution_over_what_is_seen() -> None:
    case = Case("window with sinks", queries=9)
    q, k, _ = case.inputs()
    problem = case.problem()
    p = reference.weights(q, k, problem)
    assert p.shape == (2, 4, 9, 9)
    assert_same(p.sum(-1), torch.ones(2, 4, 9, dtype=torch.float64))
    assert bool(((p > 0) == problem.sites.visible(problem.mask, 4)).all())


@pytest.mark.parametrize("mask", ["some see nothing", "none sees anything"])
def test_a_query_that_sees_nothing_gets_zero_and_finite_gradients(mask: str) -> None:
    case = Case(mask, queries=9)
    problem = case.problem()
    blind = ~problem.sites.visible(problem.mask, 4).any(-1)[0, 0]
    out, dq, dk, dv = outputs_and_gradients(lambda q, k, v: reference.attention(q, k, v, problem), case.inputs())
    assert blind.any()
    assert not out[:, :, blind].any()
    assert not dq[:, :, blind].any()
    assert all(bool(g.isfinite().all()) for g in (dq, dk, dv))


def at(count: int) -> Sites:
    steps = torch.arange(count)[None]
    return Sites(steps, steps, aligned=True)


def test_without_order_among_the_keys_their_permutation_changes_nothing() -> None:
    q, k, v = Case(queries=7).inputs()
    order = torch.randperm(7, generator=torch.Generator().manual_seed(2))
    problem = AttentionProblem(Full(), at(7), 0.4)
    assert_same(reference.attention(q, k[:, :, order], v[:, :, order], problem), reference.attention(q, k, v, problem))


def test_temperature_towards_zero_is_a_lookup_in_a_dictionary() -> None:
    """Each query is one of the keys with some noise; the output becomes the value under that key, and nothing else."""
    keys = torch.nn.functional.normalize(
        torch.randn(1, 1, 8, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64), dim=-1
    )
    values = torch.arange(8.0, dtype=torch.float64)[None, None, :, None]
    asked = torch.tensor([3, 0, 7, 3])
    queries = keys[:, :, asked] + 0.02
    places = Sites(torch.arange(4)[None], torch.arange(8)[None], aligned=True)
    off = []
    for temperature in (1.0, 0.1, 0.01, 0.001):
        out = reference.attention(queries, keys, values, AttentionProblem(Full(), places, 1 / (temperature * 16**0.5)))
        off.append(float((out.flatten() - asked).abs().max()))
    assert off == sorted(off, reverse=True)
    assert off[0] > 0.5
    assert off[-1] < 1e-12


def test_large_temperature_is_the_mean() -> None:
    q, k, v = Case(queries=6, heads=(2, 2)).inputs()
    out = reference.attention(q, k, v, AttentionProblem(Full(), at(6), 1e-12))
    assert_same(out, v.mean(2, keepdim=True).expand_as(out), 1e-10)


@pytest.mark.parametrize("width", [4, 64, 256])
def test_dot_products_have_variance_dk_and_one_after_scaling(width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, 512, width, generator=generator, dtype=torch.float64) for _ in range(2))
    dots = q @ k.mT
    assert float(dots.var()) == pytest.approx(width, rel=0.05)
    # The logarithm of the weights is the scaled score less a number a row.
    log = reference.weights(q, k, AttentionProblem(Full(), at(512), width**-0.5)).log()
    assert float(log.var(-1).mean()) == pytest.approx(1.0, rel=0.05)


def test_scores_far_beyond_the_range_of_exp_stay_finite() -> None:
    q = torch.tensor([[[[1e4]]]])
    k, v = torch.tensor([[[[1.0], [2.0], [-3.0]]]]), torch.tensor([[[[1.0], [2.0], [3.0]]]])
    places = Sites(torch.tensor([[2]]), torch.arange(3)[None], aligned=True)
    assert reference.attention(q, k, v, AttentionProblem(Full(), places, 1.0)).item() == 2.0


def test_dropout_takes_whole_weights_and_keeps_the_mean() -> None:
    q, k = (torch.randn(1, 1, 64, 8, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    plain, dropped = (AttentionProblem(Causal(), at(64), 0.3, dropout=p) for p in (0.0, 0.4))
    weights = reference.weights(q, k, plain)
    torch.manual_seed(0)
    seen = reference.attention(q, k, torch.eye(64)[None, None], dropped)
    kept = seen != 0
    assert_same(seen[kept], (weights / 0.6)[kept])
    share = float(kept.sum() / (weights > 0).sum())
    assert share == pytest.approx(0.6, abs=0.03)


def test_a_table_of_one_row_and_head_serves_all() -> None:
    case = Case("adjacency", queries=6)
    q, k, v = case.inputs()
    one = case.problem()
    assert isinstance(one.mask, Explicit)
    wide = AttentionProblem(Explicit(one.mask.table.expand(2, 4, -1, -1)), one.sites, one.scale)
    assert_same(reference.attention(q, k, v, wide), reference.attention(q, k, v, one))
