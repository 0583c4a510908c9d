"""The native kernel of attention against float64, by every instruction path that the machine has."""

from __future__ import annotations

import pytest
import torch
from tests.ops.attention_cases import Case, by_loops
from tests.ops.clock import forget_choices
from tests.ops.present import needs_native
from torch import Tensor

from qkv.ops.attention import choose, reference
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.twins import native
from qkv.ops.masks import Causal, Full, Mask, Sites
from qkv.ops.selection.choices import Choice

SIZES = [  # batch, heads, key heads, queries, keys, width, value width
    (1, 1, 1, 1, 1, 16, 16),
    (2, 4, 2, 5, 5, 32, 16),
    (2, 6, 1, 47, 63, 16, 48),
    (1, 2, 2, 64, 64, 64, 64),
    (1, 3, 3, 49, 129, 80, 128),
    (2, 2, 1, 130, 300, 48, 80),
    (17, 4, 2, 50, 69, 32, 48),  # so many heads that a thread computes whole ones
]


def sample(size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v as views of projections (B, N, H, D), as a mixer gives them."""
    batch, heads, kv_heads, queries, keys, width, value_width = size
    generator = torch.Generator().manual_seed(sum(size))
    shapes = ((queries, heads, width), (keys, kv_heads, width), (keys, kv_heads, value_width))
    q, k, v = (torch.randn(batch, *shape, generator=generator).to(dtype).transpose(1, 2) for shape in shapes)
    return q, k, v


def problem_of(mask: Mask, queries: int, keys: int) -> AttentionProblem:
    steps = torch.arange(keys)[None]
    return AttentionProblem(mask, Sites(steps[:, keys - queries :], steps, aligned=True), 0.3)


def near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=tolerance)


@needs_native
@pytest.mark.parametrize("mask", [Causal(), Full()], ids=["causal", "full"])
@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_outputs_equal_float64(size: tuple[int, ...], mask: Mask) -> None:
    problem = problem_of(mask, *size[3:5])
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        q, k, v = sample(size, dtype)
        found = native.attention(q, k, v, problem)
        assert (found.dtype, found.shape) == (dtype, (*q.shape[:3], v.shape[3]))
        near(found, reference.attention(q.double(), k.double(), v.double(), problem), tolerance)


@needs_native
@torch.no_grad()
def test_outputs_equal_loops() -> None:
    for sites in ("aligned", "aligned, fewer queries"):
        case = Case("causal", sites, queries=9, heads=(4, 2), widths=(16, 32))
        problem, (q, k, v) = case.problem(), case.inputs(torch.float32)
        near(native.attention(q, k, v, problem), by_loops(q.double(), k.double(), v.double(), problem), 3e-6)


@needs_native
@torch.no_grad()
def test_large_scores_and_odd_memory_do_not_matter() -> None:
    """Scores of thousands, of which one weight is 1; features that are not side by side; one value per feature."""
    problem = problem_of(Causal(), 70, 70)
    q, k, v = (t * 60 for t in sample((1, 2, 2, 70, 70, 16, 16)))
    near(native.attention(q, k, v, problem), reference.attention(q.double(), k.double(), v.double(), problem), 2e-3)
    spread = torch.randn(1, 2, 16, 70, generator=torch.Generator().manual_seed(1)).transpose(2, 3)
    near(
        native.attention(spread, spread, v, problem),
        reference.attention(spread.double(), spread.double(), v.double(), problem),
        1e-3,
    )


@needs_native
@torch.no_grad()
def test_threads_change_nothing() -> None:
    q, k, v = sample(SIZES[-1])
    problem, before = problem_of(Causal(), 130, 300), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(native.attention(q, k, v, problem))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


@needs_native
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@torch.no_grad()
def test_not_a_number_stays_where_it_belongs(bad: float) -> None:
    q, k, v = (t.clone() for t in sample((1, 2, 2, 60, 60, 16, 16)))
    q[0, 0, 7, 3], k[0, 1, 50, 2], v[0, 1, 55, 1] = bad, bad, bad
    problem = problem_of(Causal(), 60, 60)
    found, expected = native.attention(q, k, v, problem), reference.attention(q, k, v, problem)
    assert torch.equal(found.isfinite()[0, 0], expected.isfinite()[0, 0])
    assert found[0, 1, :50].isfinite().all()


@needs_native
def test_it_is_chosen_only_for_what_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_choices(monkeypatch)
    asked: list[str] = []

    def fastest(op: str, case: str, default: str, runs: dict[str, object], what: str) -> Choice:
        asked.append(case)
        for run in runs.values():
            assert callable(run)
            run()
        return Choice(op, case, "native" if "native" in runs else default, "given")

    monkeypatch.setattr(choose, "fastest", fastest)
    plain, wide = sample((1, 8, 8, 128, 128, 16, 16)), sample((1, 8, 8, 128, 128, 20, 20))
    after = sample((1, 8, 8, 128, 200, 16, 16))
    with torch.no_grad():
        assert choose.choice(*plain, problem_of(Causal(), 128, 128)).twin == "native"
        assert choose.choice(*after, problem_of(Causal(), 128, 200)).twin == "native"
        assert choose.choice(*wide, problem_of(Causal(), 128, 128)).twin != "native"
        doubles = tuple(t.double() for t in plain)
        assert choose.choice(*doubles, problem_of(Causal(), 128, 128)).twin != "native"  # type: ignore[arg-type]
        near(
            choose.attention(*after, problem_of(Causal(), 128, 200)),
            reference.attention(*(t.double() for t in after), problem_of(Causal(), 128, 200)),  # type: ignore[arg-type]
            3e-6,
        )
    assert choose.choice(*plain, problem_of(Causal(), 128, 128)).twin != "native", "there are no gradients"
    assert any("after a past" in case for case in asked)
