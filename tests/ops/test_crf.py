"""Conditional random fields against the enumeration of all sequences, in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from qkv.ops.crf import Transitions, best_sequence, log_partition, sequence_score

CLASSES = 3
LENGTHS = torch.tensor([4, 1, 0, 3])


def drawn(seed: int = 0) -> tuple[Tensor, Transitions]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return 2 * torch.randn(*shape, dtype=torch.float64, generator=generator)

    return normal(4, 4, CLASSES), Transitions(normal(CLASSES, CLASSES), normal(CLASSES), normal(CLASSES))


def score(emissions: Tensor, classes: tuple[int, ...], transitions: Transitions) -> Tensor:
    """Sum of all scores, one after the other."""
    total = transitions.start[classes[0]] + transitions.end[classes[-1]]
    for place, one in enumerate(classes):
        total = total + emissions[place, one]
        if place:
            total = total + transitions.between[classes[place - 1], one]
    return total


def every(emissions: Tensor, length: int, transitions: Transitions) -> dict[tuple[int, ...], Tensor]:
    sequences = itertools.product(range(CLASSES), repeat=length)
    return {classes: score(emissions, classes, transitions) for classes in sequences}


@pytest.mark.parametrize("seed", range(3))
def test_sums_and_maxima_are_those_of_all_sequences(seed: int) -> None:
    emissions, transitions = drawn(seed)
    total, best = log_partition(emissions, LENGTHS, transitions), best_sequence(emissions, LENGTHS, transitions)
    for row, length in enumerate(LENGTHS.tolist()):
        if not length:
            assert total[row] == 0
            continue
        scores = every(emissions[row], length, transitions)
        torch.testing.assert_close(total[row], torch.stack(list(scores.values())).logsumexp(0))
        assert tuple(best[row, :length].tolist()) == max(scores, key=lambda classes: float(scores[classes]))
        assert best[row, length:].eq(0).all()


def test_the_score_of_a_sequence_ignores_padding() -> None:
    emissions, transitions = drawn()
    classes = torch.tensor([[2, 0, 1, 1], [1, 2, 2, 2], [0, 1, 2, 0], [0, 2, 2, 1]])
    wanted = [
        score(emissions[row], tuple(classes[row, :length].tolist()), transitions) if length else torch.tensor(0.0)
        for row, length in enumerate(LENGTHS.tolist())
    ]
    torch.testing.assert_close(
        sequence_score(emissions, classes, LENGTHS, transitions), torch.stack([one.double() for one in wanted])
    )


def test_gradients_are_those_of_finite_differences() -> None:
    emissions, transitions = drawn()
    classes = torch.tensor([[2, 0, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0], [0, 2, 2, 0]])

    def nats(emissions: Tensor, *scores: Tensor) -> Tensor:
        known = Transitions(*scores)
        return log_partition(emissions, LENGTHS, known) - sequence_score(emissions, classes, LENGTHS, known)

    given = [t.requires_grad_() for t in (emissions, *transitions)]
    assert torch.autograd.gradcheck(nats, given)
    (grad,) = torch.autograd.grad(nats(*given).sum(), emissions)
    assert all(grad[row, length:].eq(0).all() for row, length in enumerate(LENGTHS.tolist()))
