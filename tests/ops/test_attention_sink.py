"""A learned sink in the softmax against loops, through every implementation of attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import product

import pytest
import torch
from tests.ops.attention_cases import MASKS, SITES, Case, by_loops, random
from tests.ops.compare import assert_all_same, assert_same, outputs_and_gradients
from tests.ops.test_attention_twins import SMALL_BLOCKS, serves
from torch import Tensor

from qkv.ops.attention import choose, reference
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.twins import sink
from qkv.ops.masks import Causal, Full, Sites, Span

CASES = [
    Case(mask, sites, queries, alibi=alibi, added=added, values=values, widths=widths, heads=heads)
    for (mask, sites), (queries, alibi, added, values, widths, heads) in product(
        product(MASKS, SITES),
        [
            (9, False, False, False, (6, 3), (4, 2)),
            (9, True, True, False, (4, 4), (4, 4)),
            (9, False, False, True, (3, 5), (4, 1)),
            (1, False, False, False, (4, 4), (4, 2)),
            (1, True, True, False, (4, 6), (4, 1)),
        ],
    )
    if queries >= 5 or sites != "packed"
]


def with_gradient(f: Callable[..., Tensor], problem: AttentionProblem, inputs: list[Tensor]) -> list[Tensor]:
    """Output of f(q, k, v, problem) and the gradients of q, k, v and the sink."""
    return outputs_and_gradients(lambda q, k, v, z: f(q, k, v, replace(problem, sink=z)), inputs)


@pytest.mark.parametrize("case", [case for case in CASES if case.sites in ("aligned", "packed")][::3], ids=str)
def test_the_reference_is_its_sentence(case: Case) -> None:
    loops = with_gradient(
        lambda *given: by_loops(*given) + 0 * given[3].sink.sum(),  # type: ignore[union-attr]
        case.problem(),
        inputs_of(case),
    )
    assert_all_same(by_reference(case), loops)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
def test_the_choice_of_an_implementation_gives_the_reference(dtype: torch.dtype) -> None:
    for case in CASES:
        problem, inputs = case.problem(), [*case.inputs(dtype), random(4).to(dtype)]
        expected = with_gradient(reference.attention, problem, [t.double() for t in inputs])
        try:
            assert_all_same(with_gradient(choose.attention, problem, inputs), expected)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error


def inputs_of(case: Case) -> list[Tensor]:
    """q, k, v and the sink."""
    return [*case.inputs(), random(4)]


@cache
def by_reference(case: Case) -> list[Tensor]:
    """The same for every implementation."""
    return with_gradient(reference.attention, case.problem(), inputs_of(case))


@pytest.mark.parametrize("twin", [name for name in SMALL_BLOCKS if name != "top k"])
def test_every_implementation_gives_the_reference(twin: str) -> None:
    """On one more key, each computes what it is made for."""
    served = [case for case in CASES if case.queries > 1 and serves(twin, widened(case))]
    assert len(served) >= 2
    for case in served:
        got = with_gradient(partial(sink.attention, attend=SMALL_BLOCKS[twin]), case.problem(), inputs_of(case))
        try:
            assert_all_same(got, by_reference(case))
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error


def widened(case: Case) -> Case:
    """The sizes that an implementation is given: values of plain attention are as wide as keys."""
    wide = case.widths[0] >= case.widths[1]
    return case.changed(widths=(case.widths[0] + 1, case.widths[0] + 1 if wide else case.widths[1]))


@pytest.mark.parametrize("queries", [1, 7])
def test_a_sink_of_minus_infinity_is_plain_attention(queries: int) -> None:
    case = Case(queries=queries, sites="aligned, fewer queries")
    problem, inputs = case.problem(), case.inputs()
    found = choose.attention(*inputs, replace(problem, sink=torch.full((4,), -1e5, dtype=torch.float64)))
    assert_same(found, reference.attention(*inputs, problem))


@pytest.mark.parametrize("queries", [1, 7])
def test_a_large_sink_takes_all_weight(queries: int) -> None:
    case = Case(queries=queries, sites="aligned, fewer queries")
    problem, inputs = case.problem(), case.inputs()
    heads = torch.tensor([0.0, 1e5, 0.0, 1e5], dtype=torch.float64)
    found = choose.attention(*inputs, replace(problem, sink=heads))
    assert found[:, 1::2].abs().max() == 0
    assert found[:, ::2].abs().min() > 0


def test_plain_masks_stay_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast paths of causal and of full self-attention are open to attention with a sink."""
    seen = []
    monkeypatch.setattr(choose, "_plain", lambda *given: seen.append(given) or choose._fixed("s", "sdpa", ""))
    steps = torch.arange(6)[None]
    q, k, v = Case(queries=6, widths=(4, 4)).inputs()
    for mask in (Causal(), Full()):
        choose.attention(q, k, v, AttentionProblem(mask, Sites(steps, steps, aligned=True), 0.5, sink=random(4)))
    assert [given[0].shape[2:] for given in seen] == [(7, 5)] * 2


def test_bounds_on_blocks_are_those_of_the_predicate() -> None:
    for name in ("causal window", "window with sinks", "blocks", "prefix or causal"):
        mask = sink.WithSink(MASKS[name])
        steps = torch.arange(12)[None]
        shown = Sites(steps, steps).visible(mask, 1)[0, 0]
        for first, start in product(range(1, 12, 3), range(0, 12, 2)):
            block = shown[first : first + 3, start : start + 2]
            span = Span(first, min(first + 2, 11), start, start + 1)
            assert mask.may_see(span) or not block.any()
            assert not mask.sees_all(span) or block.all()
