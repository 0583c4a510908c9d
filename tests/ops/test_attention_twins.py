"""Every fast path of attention against the reference, on what it is made for; and the choice sends it nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.attention_cases import MASKS, SITES, Case, by_loops, random
from tests.ops.clock import forget_choices
from tests.ops.compare import assert_all_same, assert_same, outputs_and_gradients
from tests.ops.present import exact
from torch import Tensor

from qkv.ops.attention import choose, reference
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.twins import banded, blockwise, fused_onednn, products, sdpa, tiled, top_k
from qkv.ops.masks import Causal, Full, Mask, Prefix, Sites, Span, Window
from qkv.ops.selection import choices
from qkv.ops.selection.choices import Choice

Twin = Callable[[Tensor, Tensor, Tensor, AttentionProblem], Tensor]

SMALL_BLOCKS: dict[str, Twin] = {
    "sdpa": sdpa.attention,
    "products": products.attention,
    "sdpa, oneDNN": fused_onednn.attention,
    "tiled": partial(tiled.attention, block=4),
    "banded": partial(banded.attention, block=4),
    "banded, at once": partial(banded.at_once, block=4),
    "blockwise": partial(blockwise.attention, block=4),
    "top k": partial(top_k.attention, block=300),
}
"""Blocks of 4, so that short sequences have many, whole, cut and skipped ones."""


def blind(case: Case) -> bool:
    problem = case.problem()
    return not bool(problem.sites.visible(problem.mask, case.heads[0]).any(-1).all())


def plain(case: Case) -> bool:
    """At this length the mask hides nothing, or what comes later and nothing else."""
    problem = case.problem()
    shown = problem.sites.visible(problem.mask, case.heads[0])
    return bool(shown.all()) or bool((shown == shown.new_ones(shown.shape[-2:]).tril()).all())


def serves(twin: str, case: Case) -> bool:
    """What the docstring of each twin offers."""
    if twin == "reference":
        return True
    if case.values or (twin != "top k" and case.problem().chooses(case.keys)):
        return False
    if case.softcap is not None and twin not in ("products", "banded", "banded, at once", "top k"):
        return False
    match twin:
        case "sdpa" | "products" | "top k":
            return True
        case "sdpa, oneDNN":
            square = case.sites == "aligned" and case.widths[0] == case.widths[1]
            return square and plain(case) and not case.alibi and not case.added and not case.dropout
        case "tiled":
            return (
                case.aligned
                and case.same_for_all
                and not blind(case)
                and not case.alibi
                and not case.added
                and not case.dropout
            )
        case "banded":
            return case.aligned
        case "banded, at once":
            return case.aligned and "by row" not in case.mask and not case.added and case.problem().sites.given is None
        case "blockwise":
            return not case.dropout
        case "after a past" | "native":  # they have no gradients: tests of their own follow, or test_native_attention
            return False
    raise ValueError(twin)


CASES = [
    Case(mask, sites, queries, alibi=alibi, widths=widths, heads=heads)
    for (mask, sites), (queries, alibi, widths, heads) in product(
        product(MASKS, SITES), [(9, False, (6, 3), (4, 2)), (13, True, (4, 4), (4, 4)), (10, False, (5, 5), (4, 1))]
    )
]
CASES += [
    Case(mask, sites, 11, heads, alibi=alibi, added=added, top_k=count)
    for mask, sites in product(
        ("causal", "window with sinks", "some see nothing", "adjacency by row and head, causal"), SITES
    )
    for heads, alibi, added, count in [
        ((4, 2), False, True, None),
        ((4, 1), True, False, 3),
        ((4, 4), True, True, 1),
        ((4, 4), False, True, 50),
    ]
]
CASES += [
    Case(mask, sites, 11, heads, alibi=alibi, top_k=count, softcap=0.5)
    for mask, sites in product(
        ("causal", "window with sinks", "some see nothing", "adjacency by row and head, causal"), SITES
    )
    for heads, alibi, count in [((4, 2), False, None), ((4, 1), True, None), ((4, 4), False, 3)]
]


@cache
def by_reference(case: Case, dtype: torch.dtype) -> list[Tensor]:
    """What the reference gives in float64 for the inputs of a case: the same for every twin."""
    inputs = [t.double() for t in case.inputs(dtype)]
    return outputs_and_gradients(partial(reference.attention, problem=case.problem()), inputs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("twin", exact(SMALL_BLOCKS))
def test_outputs_and_gradients_equal_the_reference(twin: str, dtype: torch.dtype) -> None:
    served = [case for case in CASES if serves(twin, case)]
    served = (
        served if dtype == torch.float64 or len(served) < 30 else served[::3]
    )  # all cases in one precision are enough
    assert len(served) >= 3
    for case in served:
        fast = partial(SMALL_BLOCKS[twin], problem=case.problem())
        try:
            assert_all_same(outputs_and_gradients(fast, case.inputs(dtype)), by_reference(case, dtype))
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error


@pytest.mark.parametrize("twin", exact(["sdpa", "sdpa, oneDNN", "tiled", "blockwise"]))
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_blocks_of_their_own_choice_equal_the_reference(twin: str, mask: str) -> None:
    """At a length that no block divides."""
    case = Case(mask, queries=300, heads=(2, 1), widths=(8, 8))
    problem, inputs = case.problem(), case.inputs(torch.float32, batch=1)
    expected = outputs_and_gradients(partial(reference.attention, problem=problem), [t.double() for t in inputs])
    assert_all_same(outputs_and_gradients(partial(choose.TWINS[twin], problem=problem), inputs), expected)


@pytest.mark.parametrize("mask", [Causal() & Window(100), Causal() & Window(70, sinks=3), Window(40)])
def test_a_band_longer_than_its_blocks_equals_the_reference(mask: Causal) -> None:
    steps = torch.arange(2100)[None]
    problem = AttentionProblem(mask, Sites(steps, steps, aligned=True), 0.5)
    inputs = [torch.randn(1, 1, 2100, 4, generator=torch.Generator().manual_seed(s)) for s in range(3)]
    assert choose.choice(*inputs, problem).twin == "banded"
    expected = outputs_and_gradients(partial(reference.attention, problem=problem), [t.double() for t in inputs])
    for twin in (banded.attention, banded.at_once):
        assert_all_same(outputs_and_gradients(partial(twin, problem=problem), inputs), expected)


def test_an_accelerator_computes_all_bands_at_once() -> None:
    steps = torch.arange(2100, device="meta")[None]
    problem = AttentionProblem(Causal() & Window(100), Sites(steps, steps, aligned=True), 0.5)
    q, k, v = torch.empty(3, 2, 4, 2100, 8, device="meta")
    assert choose.choice(q, k, v, problem).twin == "banded, at once"
    assert choose.attention(q, k, v, problem).shape == q.shape
    added = replace(problem, added=torch.empty(1, 1, 2100, 2100, device="meta"))
    assert choose.choice(q, k, v, added).twin == "banded"


def test_sites_said_to_be_fully_visible() -> None:
    """``full`` lets a path leave the mask out; that is right where the mask shows everything."""
    q, k, v = Case(queries=1, sites="ring", heads=(2, 2)).inputs()
    held = torch.tensor([[3, 0, 1, 2, 4, 5], [5, 4, 3, 2, 1, 0]])
    told, untold = (
        AttentionProblem(Causal(), Sites(torch.tensor([[5], [5]]), held, full=full), 0.5) for full in (True, False)
    )
    assert_same(sdpa.attention(q, k, v, told), reference.attention(q, k, v, untold))


@pytest.mark.parametrize("twin", ["reference", "sdpa", "banded", "top k", "chosen"])
def test_what_is_added_has_a_gradient(twin: str) -> None:
    """Against the reference in loops; a row or a head may share what is added with others."""
    for mask, shape in product(("causal", "window with sinks"), ((1, 4, 11, 11), (2, 1, 11, 11))):
        case = Case(mask, queries=11)
        problem, inputs = case.problem(), [*case.inputs(), random(*shape)]
        f = choose.attention if twin == "chosen" else {**SMALL_BLOCKS, "reference": reference.attention}[twin]

        def run(
            q: Tensor, k: Tensor, v: Tensor, added: Tensor, f: Twin = f, problem: AttentionProblem = problem
        ) -> Tensor:
            return f(q, k, v, replace(problem, added=added))

        def loops(q: Tensor, k: Tensor, v: Tensor, added: Tensor, problem: AttentionProblem = problem) -> Tensor:
            return by_loops(q, k, v, replace(problem, added=added.expand(-1, 4, -1, -1)))

        assert_all_same(outputs_and_gradients(run, inputs), outputs_and_gradients(loops, inputs))


def test_a_path_without_a_gradient_for_what_is_added_is_not_chosen_for_one(fresh_choices: None) -> None:
    """Blocks of keys give none, so a long sequence with a learned part keeps its scores."""
    case = Case("causal fixed", queries=14, added=True)
    problem = case.problem()
    assert problem.added is not None
    learned = replace(problem, added=problem.added.clone().requires_grad_())
    assert choose.choice(*case.inputs(), problem).twin == "blockwise"
    assert choose.choice(*case.inputs(), learned).twin == "sdpa"
    assert [c.case for c in choices.all_choices()] == ["long, irregular mask", "added scores"]


@pytest.mark.parametrize("twin", ["sdpa", "banded", "reference", "top k"])
def test_dropout_takes_whole_weights_and_keeps_the_mean(twin: str) -> None:
    steps = torch.arange(64)[None]
    plain, dropped = (
        AttentionProblem(Causal() & Window(30), Sites(steps, steps, aligned=True), 0.3, dropout=p) for p in (0.0, 0.4)
    )
    q, k = (torch.randn(1, 1, 64, 8, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    torch.manual_seed(0)
    seen = choose.TWINS[twin](q, k, torch.eye(64)[None, None], dropped)
    weights = reference.weights(q, k, plain)
    assert_same(seen[seen != 0], (weights / 0.6)[seen != 0])
    assert float((seen != 0).sum() / (weights > 0).sum()) == pytest.approx(0.6, abs=0.03)


@pytest.fixture
def fresh_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """No choice is made yet, and those made here are forgotten; every path lies within reach of short sequences."""
    forget_choices(monkeypatch)
    monkeypatch.setattr(choose, "_SMALLEST", 1)
    monkeypatch.setattr(choose, "_LARGEST_MASK", 120)
    monkeypatch.setattr(banded, "BLOCK", 3)


TIMED = ["sdpa", "sdpa, oneDNN", "tiled", "products"]


def preferring(timed: str) -> Callable[..., Choice]:
    """A measurement whose outcome is known: ``timed`` where it is a candidate, else the plain path."""
    return lambda op, case, plain, runs, what: Choice(op, case, timed if timed in runs else plain, "given")


cases = st.builds(
    Case,
    mask=st.sampled_from(list(MASKS)),
    sites=st.sampled_from(SITES),
    queries=st.integers(5, 16),
    heads=st.sampled_from([(4, 4), (4, 2), (4, 1)]),
    widths=st.sampled_from([(4, 4), (4, 2)]),
    alibi=st.booleans(),
    dropout=st.sampled_from([0.0, 0.0, 0.5]),
    added=st.booleans(),
    top_k=st.sampled_from([None, None, 1, 4, 100]),
    values=st.sampled_from([False, False, False, True]),
    softcap=st.sampled_from([None, None, 0.5]),
)


@settings(max_examples=150)
@given(case=cases, timed=st.sampled_from(TIMED), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_the_choice_suits_and_its_answer_is_the_reference(
    fresh_choices: None, case: Case, timed: str, dtype: torch.dtype
) -> None:
    """Whatever a measurement would have preferred."""
    choices.table().choices.clear()
    problem, inputs = case.problem(), case.inputs(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "fastest", preferring(timed))
        chosen = choose.choice(*inputs, problem).twin
        assert serves(chosen, case), f"{chosen} is not made for this"
        if case.dropout:
            return
        expected = outputs_and_gradients(partial(reference.attention, problem=problem), [t.double() for t in inputs])
        assert_all_same(outputs_and_gradients(partial(choose.attention, problem=problem), inputs), expected)


@pytest.mark.parametrize("timed", TIMED)
def test_the_choice_never_sends_a_path_what_it_is_not_made_for(
    fresh_choices: None, monkeypatch: pytest.MonkeyPatch, timed: str
) -> None:
    """Every mask at every kind of site, with each thing that rules a path out alone and together."""
    monkeypatch.setattr(choose, "fastest", preferring(timed))
    for mask, kind, queries, widths, alibi, dropout in product(
        MASKS, SITES, (1, 5, 14), ((4, 4), (4, 2)), (False, True), (0.0, 0.5)
    ):
        if kind == "packed" and queries < 5:
            continue
        case = Case(mask, kind, queries, widths=widths, alibi=alibi, dropout=dropout)
        chosen = choose.choice(*case.inputs(batch=1), case.problem()).twin
        assert serves(chosen, case), f"{chosen} is not made for {case}"


AFTER_A_PAST = [
    Case("causal", "aligned, fewer queries", 70, heads=heads, widths=(8, 8)) for heads in ((4, 4), (4, 2), (3, 1))
]


def test_every_twin_is_chosen_for_something(fresh_choices: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose.onednn, "available", lambda: True)
    found = set()
    for timed in TIMED:
        choices.table().choices.clear()
        monkeypatch.setattr(choose, "fastest", preferring(timed))
        found |= {choose.choice(*case.inputs(torch.float32), case.problem()).twin for case in CASES}
        found.add(choose.choice(*Case().inputs(), Case(values=True).problem()).twin)
        with torch.no_grad():
            found.add(choose.choice(*AFTER_A_PAST[0].inputs(), AFTER_A_PAST[0].problem()).twin)
    elsewhere = {"native", "banded, at once"}  # test_native_attention tests the one, where it can be built; the other:
    assert found == choose.TWINS.keys() - elsewhere


def test_the_measured_choice_is_one_of_the_candidates(fresh_choices: None) -> None:
    case = Case("causal", queries=64, heads=(2, 2), widths=(8, 8))
    found = choose.choice(*case.inputs(torch.float32), case.problem())
    assert found.twin in ("sdpa", "tiled", "sdpa, oneDNN")
    assert found.case == "training, float32, 64 positions"
    assert found.gain is not None
    assert found.gain >= 1.0
    with torch.no_grad():
        assert choose.choice(*case.inputs(torch.float32), case.problem()).case == "inference, float32, 64 positions"
    assert [c.op for c in choices.all_choices()] == ["attention", "attention"]


@pytest.mark.parametrize("twin", ["sdpa, oneDNN", "tiled", "blockwise"])
def test_second_derivatives_are_refused_and_not_wrong(twin: str) -> None:
    """What these keep for the backward pass is not part of the graph."""
    case = Case("causal", widths=(4, 4))
    inputs = [t.requires_grad_() for t in case.inputs()]
    out = SMALL_BLOCKS[twin](*inputs, case.problem())
    (dq,) = torch.autograd.grad(out.square().sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dq.sum().backward()


def kept_for_backward(twin: Twin, length: int) -> int:
    """How many numbers the forward pass keeps."""
    case = Case("causal", queries=length, heads=(1, 1), widths=(4, 4))
    kept: list[int] = []
    inputs = [t.requires_grad_() for t in case.inputs(batch=1)]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        twin(*inputs, case.problem())
    return sum(kept)


@pytest.mark.parametrize("twin", ["sdpa", "sdpa, oneDNN", "tiled", "blockwise"])
def test_what_is_kept_grows_with_the_length_and_not_with_its_square(twin: str) -> None:
    assert kept_for_backward(SMALL_BLOCKS[twin], 160) <= 2 * kept_for_backward(SMALL_BLOCKS[twin], 80)
    assert kept_for_backward(reference.attention, 160) > 3 * kept_for_backward(reference.attention, 80)


def test_the_work_of_a_window_follows_the_window() -> None:
    """Key blocks looked at, for a sequence twice as long: twice as many, where full attention has four times."""

    def looked_at(mask: Mask, length: int) -> int:
        steps = torch.arange(length)[None]
        return sum(
            1
            for _ in blockwise.blocks(
                AttentionProblem(mask, Sites(steps, steps, aligned=True), 1.0), length, length, 16
            )
        )

    window = Causal() & Window(20, sinks=2)
    assert looked_at(window, 640) <= 2 * looked_at(window, 320) + 8
    assert looked_at(Full(), 640) == 4 * looked_at(Full(), 320)
    assert looked_at(Causal(), 640) == 40 * 41 / 2


@dataclass(frozen=True)
class Asked(Mask):
    """Mask that counts the blocks of keys that are looked at."""

    mask: Mask
    spans: list[Span]

    def may_see(self, span: Span) -> bool:
        self.spans.append(span)
        return self.mask.may_see(span)


@pytest.mark.parametrize("mask", [Full(), Causal(), Causal() & Window(20, sinks=2), Window(20) | Prefix(5)])
@pytest.mark.parametrize(("queries", "keys"), [(64, 64), (50, 83), (1, 64)])
def test_blocks_are_all_that_may_be_seen_in_order(mask: Mask, queries: int, keys: int) -> None:
    sites = Sites(torch.arange(keys - queries, keys)[None], torch.arange(keys)[None], aligned=True)
    found = [(q.start, k.start) for q, k, _ in blockwise.blocks(AttentionProblem(mask, sites, 1.0), queries, keys, 16)]
    offset = keys - queries
    assert found == [
        (i, j)
        for i in range(0, queries, 16)
        for j in range(0, keys, 16)
        if mask.may_see(Span(i + offset, min(i + 16, queries) + offset - 1, j, min(j + 16, keys) - 1))
    ]


def test_a_window_is_found_without_a_look_at_every_block() -> None:
    def looks(length: int) -> int:
        mask, steps = Asked(Causal() & Window(20), []), torch.arange(length)[None]
        list(blockwise.blocks(AttentionProblem(mask, Sites(steps, steps, aligned=True), 1.0), length, length, 16))
        return len(mask.spans)

    assert looks(2560) < 2.5 * looks(1280)


BF16_CASES = [
    Case("full", queries=200, heads=(2, 2), widths=(32, 32)),
    Case("causal", queries=200, heads=(2, 1), widths=(32, 32)),
    Case("prefix or causal", queries=200, heads=(2, 2), widths=(32, 16)),
    Case("causal window", queries=200, heads=(2, 2), widths=(32, 32), alibi=True),
    Case("causal", queries=200, heads=(2, 1), widths=(32, 32), softcap=1.0),
]


@pytest.mark.parametrize("twin", [name for name in choose.TWINS if name != "reference"])
def test_the_error_in_bf16_is_at_most_twice_that_of_the_reference(twin: str) -> None:
    """Both against the fp32 reference on the same rounded inputs; mean square, for the output and each gradient."""
    for case in (c for c in BF16_CASES if serves(twin, c)):
        problem, inputs = case.problem(), case.inputs(torch.bfloat16)
        exact = outputs_and_gradients(partial(reference.attention, problem=problem), [t.float() for t in inputs])
        plain = outputs_and_gradients(partial(reference.attention, problem=problem), inputs)
        fast = outputs_and_gradients(partial(choose.TWINS[twin], problem=problem), inputs)
        for got, allowed, right in zip(fast, plain, exact, strict=True):
            error, reference_error = (float((t.float() - right).square().mean().sqrt()) for t in (got, allowed))
            assert error <= 2 * reference_error, (
                f"{case}: {error:.2e} where the reference in bf16 is off by {reference_error:.2e}"
            )


@torch.no_grad()
@pytest.mark.parametrize("case", AFTER_A_PAST)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_chunk_after_a_past_equals_the_reference(case: Case, dtype: torch.dtype) -> None:
    problem, inputs = case.problem(), case.inputs(dtype)
    assert choose.choice(*inputs, problem).twin == "after a past"
    got, plain = choose.attention(*inputs, problem), reference.attention(*inputs, problem)
    exact = reference.attention(*(t.double() for t in inputs), problem)
    if dtype == torch.bfloat16:
        assert (got - exact).square().mean() <= 4 * (plain - exact).square().mean()
    else:
        assert_same(got, exact)


def test_what_two_passes_cannot_compute_is_left_to_others() -> None:
    case = AFTER_A_PAST[0]
    others = [
        case.changed(queries=10),
        case.changed(mask="causal window"),
        case.changed(alibi=True),
        case.changed(added=True),
        case.changed(widths=(8, 4)),
        case.changed(softcap=1.0),
        case.changed(sites="ring"),
        case.changed(sites="aligned"),
    ]
    with torch.no_grad():
        assert "after a past" not in {choose.choice(*other.inputs(), other.problem()).twin for other in others}
    assert choose.choice(*case.inputs(), case.problem()).twin != "after a past", "there are no gradients"


@pytest.mark.parametrize("shape", [(2, 4, 0, 8), (0, 4, 9, 8)])
def test_nothing_in_gives_nothing_out(shape: tuple[int, ...]) -> None:
    steps = torch.arange(shape[2])[None]
    q = torch.zeros(shape)
    assert choose.attention(q, q, q, AttentionProblem(Causal(), Sites(steps, steps, aligned=True), 1.0)).shape == shape
