"""Every filter against a loop over plain numbers and transformers' processors; draws against the distribution."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as peer

from qkv.generation.logits import filters
from qkv.spec.generation import Generation
from qkv.system.errors import UserError

BATCH, VOCABULARY = 4, 37


def some_logits(seed: int, scale: float = 3.0, vocabulary: int = VOCABULARY) -> Tensor:
    return torch.randn(BATCH, vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


def kept(logits: Tensor) -> list[set[int]]:
    return [{i for i, x in enumerate(row) if x > -math.inf} for row in logits.tolist()]


def softmax(row: list[float]) -> list[float]:
    top = max(row)
    raw = [math.exp(x - top) for x in row]
    return [x / math.fsum(raw) for x in raw]


def loop_top_k(row: list[float], k: int) -> set[int]:
    return {i for i, x in enumerate(row) if sum(y > x for y in row) < k}


def loop_top_p(row: list[float], p: float) -> set[int]:
    chances = softmax(row)
    order = sorted(range(len(row)), key=lambda i: -chances[i])
    nucleus: set[int] = set()
    for i in order:
        nucleus.add(i)
        if math.fsum(chances[j] for j in nucleus) >= p:
            break
    return nucleus


def loop_min_p(row: list[float], p: float) -> set[int]:
    chances = softmax(row)
    return {i for i, x in enumerate(chances) if x >= p * max(chances)}


@given(st.integers(0, 10_000), st.integers(1, VOCABULARY + 3))
def test_top_k_keeps_what_a_loop_keeps(seed: int, k: int) -> None:
    logits = some_logits(seed)
    assert kept(filters.top_k(logits, k)) == [loop_top_k(row, k) for row in logits.tolist()]


@given(st.integers(0, 10_000), st.floats(0.01, 0.999))
def test_top_p_keeps_what_a_loop_keeps(seed: int, p: float) -> None:
    logits = some_logits(seed)
    assert kept(filters.top_p(logits, p)) == [loop_top_p(row, p) for row in logits.tolist()]


@given(st.integers(0, 10_000), st.floats(0.01, 0.99))
def test_min_p_keeps_what_a_loop_keeps(seed: int, p: float) -> None:
    logits = some_logits(seed)
    assert kept(filters.min_p(logits, p)) == [loop_min_p(row, p) for row in logits.tolist()]


@given(st.integers(0, 10_000), st.floats(0.2, 5.0), st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=9))
def test_repetition_penalty_is_the_loop_over_the_text(seed: int, penalty: float, text: list[int]) -> None:
    logits = some_logits(seed)
    expected = logits.clone()
    for token in set(text):
        for row in range(BATCH):
            x = expected[row, token]
            expected[row, token] = x / penalty if x > 0 else x * penalty
    got = filters.repetition_penalty(logits, torch.tensor([text] * BATCH), penalty)
    assert torch.equal(got, expected)


@given(st.integers(0, 10_000), st.floats(0.05, 20.0))
def test_temperature_is_division_up_to_a_shift(seed: int, value: float) -> None:
    logits = some_logits(seed)
    torch.testing.assert_close(
        filters.temperature(logits, value).softmax(-1), (logits.double() / value).softmax(-1).float()
    )


@pytest.mark.parametrize("value", [1e-3, 1e-12, 1e-45, 1e-300])
def test_a_vanishing_temperature_is_a_look_up_of_the_best_token(value: float) -> None:
    logits = some_logits(0)
    chances = filters.temperature(logits, value).softmax(-1)
    torch.testing.assert_close(chances.amax(-1), torch.ones(BATCH))
    assert torch.equal(chances.argmax(-1), logits.argmax(-1))


NO_IDS = torch.zeros(BATCH, 1, dtype=torch.long)
PEERS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "temperature": (
        lambda x: filters.temperature(x, 0.7).log_softmax(-1),
        lambda x: peer.TemperatureLogitsWarper(0.7)(NO_IDS, x).log_softmax(-1),
    ),
    "top_k": (lambda x: filters.top_k(x, 5), lambda x: peer.TopKLogitsWarper(5)(NO_IDS, x)),
    "top_p": (lambda x: filters.top_p(x, 0.8), lambda x: peer.TopPLogitsWarper(0.8)(NO_IDS, x)),
    "min_p": (lambda x: filters.min_p(x, 0.1), lambda x: peer.MinPLogitsWarper(0.1)(NO_IDS, x)),
    "repetition_penalty": (
        lambda x: filters.repetition_penalty(x, torch.tensor([[3, 9, 3]] * BATCH), 1.3),
        lambda x: peer.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([[3, 9, 3]] * BATCH), x),
    ),
}


@pytest.mark.parametrize("name", PEERS)
def test_same_as_transformers(name: str) -> None:
    ours, theirs = PEERS[name]
    for seed in range(20):
        torch.testing.assert_close(ours(some_logits(seed)), theirs(some_logits(seed)))


def test_the_whole_chain_is_that_of_transformers_in_the_same_order() -> None:
    generation = Generation(repetition_penalty=1.4, temperature=0.6, top_k=12, top_p=0.9, min_p=0.05)
    text = torch.tensor([[1, 2, 3, 2]] * BATCH)
    for seed in range(20):
        logits = some_logits(seed)
        expected = logits
        for step in (
            peer.RepetitionPenaltyLogitsProcessor(1.4),
            peer.TemperatureLogitsWarper(0.6),
            peer.TopKLogitsWarper(12),
            peer.TopPLogitsWarper(0.9),
            peer.MinPLogitsWarper(0.05),
        ):
            expected = step(text, expected)
        torch.testing.assert_close(filters.filtered(logits, generation, text).softmax(-1), expected.softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.01, 1.0, 4.0])
def test_top_p_of_a_large_vocabulary_is_that_of_a_sum_in_float64(scale: float, dtype: torch.dtype) -> None:
    logits = some_logits(1, scale, vocabulary=3000).to(dtype)
    best, order = logits.double().sort(-1, descending=True)
    before = best.softmax(-1).cumsum(-1) - best.softmax(-1)
    expected = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before < 0.9)
    # Rounding of float32 chances may move the border by a token where two sums are nearly equal.
    assert ((filters.top_p(logits, 0.9) > -math.inf) ^ expected).sum() <= BATCH


def test_ties_at_the_border_stay_together() -> None:
    logits = torch.tensor([[0.0, 1.0, 1.0, -5.0]])
    assert kept(filters.top_k(logits, 1)) == [{1, 2}]
    assert kept(filters.top_p(logits, 0.1)) == [{1, 2}]


@given(st.integers(0, 10_000), st.integers(1, 9), st.floats(0.01, 1.0), st.floats(0.0, 0.99), st.floats(0.01, 5.0))
def test_the_chain_never_drops_the_best_token_nor_makes_nan(
    seed: int, k: int, p: float, low: float, heat: float
) -> None:
    logits = some_logits(seed, scale=30.0)
    got = filters.filtered(logits, Generation(temperature=heat, top_k=k, top_p=p, min_p=low))
    assert not got.isnan().any()
    assert torch.equal(got.argmax(-1), logits.argmax(-1))
    assert all(len(row) <= k for row in kept(got))


def test_nothing_changes_by_default_and_inputs_are_never_written_to() -> None:
    logits = some_logits(0)
    before = logits.clone()
    assert torch.equal(filters.filtered(logits, Generation()), before)
    filters.filtered(logits, Generation(temperature=0.5, top_k=3, top_p=0.5, min_p=0.2, repetition_penalty=2.0), NO_IDS)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty"])
def test_a_number_that_is_none_never_gets_as_far_as_the_logits(field: str) -> None:
    with pytest.raises(UserError, match=field):
        Generation.parse({field: math.nan})


def chi_square_p(counts: Tensor, chances: Tensor) -> float:
    """The chance of counts at least this far from what ``chances`` expects (Pearson's test)."""
    expected = chances * counts.sum()
    assert expected.min() >= 5, "too few draws for the test"
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(chances) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, -0.5, -torch.inf, 0.0, -3.0, 1.5])
    chances = logits.double().softmax(-1)
    uniforms = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    counts = filters.draw(logits.expand(20_000, -1), uniforms).bincount(minlength=7)
    assert counts[3] == 0
    possible = chances > 0
    assert chi_square_p(counts[possible].double(), chances[possible]) > 0.01


def test_the_chi_square_test_itself_tells_a_wrong_distribution() -> None:
    chances = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    assert chi_square_p(torch.tensor([5000.0, 3000.0, 2000.0], dtype=torch.float64), chances) > 0.99
    assert chi_square_p(torch.tensor([5200.0, 2800.0, 2000.0], dtype=torch.float64), chances) < 1e-3


@given(st.floats(0.0, 1.0, exclude_max=True), st.integers(0, 10_000))
def test_no_dropped_token_is_ever_drawn(uniform: float, seed: int) -> None:
    logits = filters.top_k(some_logits(seed), 2)
    for u in (uniform, 0.0, math.nextafter(1.0, 0.0)):
        drawn = filters.draw(logits, torch.full((BATCH,), u, dtype=torch.float64))
        assert all(token in row for token, row in zip(drawn.tolist(), kept(logits), strict=True))


def test_a_row_is_drawn_as_if_it_were_alone() -> None:
    logits = some_logits(3)
    uniforms = torch.tensor([0.1, 0.9, 0.5, 0.3], dtype=torch.float64)
    together = filters.draw(logits, uniforms)
    alone = [filters.draw(logits[i : i + 1], uniforms[i : i + 1]) for i in range(BATCH)]
    assert torch.equal(together, torch.cat(alone))


@given(st.integers(0, 10_000), st.integers(1, VOCABULARY + 2), st.booleans(), st.floats(0.05, 1.0))
def test_picking_among_the_top_k_is_drawing_from_all_that_is_left(seed: int, k: int, ties: bool, p: float) -> None:
    logits = some_logits(seed).round() if ties else some_logits(seed)
    generation = Generation(top_k=k, top_p=p, min_p=0.01, temperature=1.3, repetition_penalty=1.5)
    text = torch.tensor([[seed % VOCABULARY, 3]] * BATCH)
    for u in (0.0, 0.31, 0.77, math.nextafter(1.0, 0.0)):
        uniforms = torch.full((BATCH,), u, dtype=torch.float64)
        expected = filters.draw(filters.filtered(logits, generation, text), uniforms)
        assert torch.equal(filters.pick(logits, generation, text, uniforms), expected)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "generation", [Generation(), Generation(top_k=3), Generation(top_p=0.5), Generation(min_p=0.5)], ids=str
)
def test_logits_that_are_not_finite_reach_no_token(value: float, generation: Generation) -> None:
    logits = some_logits(0)
    logits[1, 5] = value
    drawn = filters.pick(logits, generation, None, torch.full((BATCH,), 0.5, dtype=torch.float64))
    assert [token == VOCABULARY for token in drawn.tolist()] == [False, True, False, False]
