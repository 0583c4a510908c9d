"""Quantizers against loops in double precision: levels, codes, residuals, gradients and bit rates."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from qkv.models.heads.quantizers import build_quantizer
from qkv.spec.models.quantizers import ProjectedQuantizer, Quantizer, ResidualQuantizer, ScalarQuantizer, SplitQuantizer

PARTS: list[Quantizer] = [
    ScalarQuantizer(codebooks=3, levels=(4, 3)),
    ResidualQuantizer(codebooks=3, codes=6, restart=0.0),
    ResidualQuantizer(codebooks=3, codes=6, code_width=2, restart=0.0),
    ProjectedQuantizer(codebooks=3, codes=6, code_width=2),
    SplitQuantizer(codebooks=3, codes=6, code_width=2, restart=0.0),
    SplitQuantizer(codebooks=3, codes=6, semantic=2, restart=0.0),
]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def built(part: Quantizer, width: int = 5) -> Any:
    torch.manual_seed(1)
    quantizer = build_quantizer(part, width).double()
    for parameter in quantizer.parameters():
        torch.nn.init.normal_(parameter)
    quantizer.initialise()
    return quantizer.eval()


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.kind)
def test_vectors_of_codes_are_those_of_the_forward_pass(part: Quantizer) -> None:
    quantizer, z = built(part), drawn(2, 7, 5, seed=2)
    for count in (1, 2, 3):
        coded = quantizer(z, count)
        assert coded.ids.shape == (2, 7, count)
        assert int(coded.ids.min()) >= 0
        assert int(coded.ids.max()) < part.codes_each
        torch.testing.assert_close(quantizer.vectors(coded.ids), coded.q)
        assert torch.equal(coded.ids, quantizer(z).ids[..., :count])  # the first codes do not depend on the others


def test_levels_are_all_reached_and_no_other() -> None:
    quantizer = built(ScalarQuantizer(codebooks=1, levels=(4, 3)), 2)
    with torch.no_grad():
        quantizer.into.weight.copy_(torch.eye(2, dtype=torch.float64))
        quantizer.into.bias.zero_()
    grid = torch.linspace(-9, 9, 181, dtype=torch.float64)
    z = torch.stack(torch.meshgrid(grid, grid, indexing="ij"), -1).view(1, -1, 2)
    bounded = quantizer.bounded(z).round()
    assert sorted(set(bounded[..., 0].flatten().tolist())) == [-2, -1, 0, 1]
    assert sorted(set(bounded[..., 1].flatten().tolist())) == [-1, 0, 1]
    assert torch.equal(quantizer.bounded(torch.zeros(1, 2, dtype=torch.float64)).round(), torch.zeros(1, 2))
    ids = quantizer(z).ids.flatten()
    assert sorted(set(ids.tolist())) == list(range(12))
    for (a, b), index in zip(bounded[0].tolist(), ids.tolist(), strict=True):
        assert index == (a + 2) + 4 * (b + 1)


def test_residuals_are_quantized_one_after_the_other() -> None:
    quantizer, z = built(PARTS[1]), drawn(1, 6, 5, seed=3)
    books = [book.vectors.numpy() for book in quantizer.books]
    coded, loss = quantizer(z), 0.0
    for place, vector in enumerate(z[0].numpy()):
        rest, total = vector.copy(), np.zeros(5)
        for number, book in enumerate(books):
            index = int(np.argmin([((rest - code) ** 2).sum() for code in book]))
            assert int(coded.ids[0, place, number]) == index
            loss += float(((rest - book[index]) ** 2).sum())
            rest, total = rest - book[index], total + book[index]
        np.testing.assert_allclose(coded.q[0, place].numpy(), total, rtol=1e-12)
    assert float(coded.loss) == pytest.approx(0.25 * loss / 30, rel=1e-12)


@torch.no_grad()
def test_codes_in_few_dimensions_are_nearest_by_angle() -> None:
    quantizer, z = built(PARTS[3]), drawn(1, 6, 5, seed=4)
    coded, loss = quantizer(z), 0.0
    for place, vector in enumerate(z[0]):
        rest, total = vector.clone(), torch.zeros(5, dtype=torch.float64)
        for number, book in enumerate(quantizer.books):
            small = book.into(rest)
            angles = [float(small @ code / small.norm() / code.norm()) for code in book.vectors]
            index = int(np.argmax(angles))
            assert int(coded.ids[0, place, number]) == index
            loss += 1.25 * float(((small - book.vectors[index]) ** 2).sum())
            step = book.out(book.vectors[index])
            rest, total = rest - step, total + step
        torch.testing.assert_close(coded.q[0, place], total)
    assert float(coded.loss) == pytest.approx(loss / 12, rel=1e-12)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.kind)
def test_gradients_pass_the_codes(part: Quantizer) -> None:
    quantizer, z = built(part), drawn(2, 4, 5, seed=5).requires_grad_()
    quantizer(z).q.sum().backward()
    assert z.grad is not None
    assert float(z.grad.abs().min()) > 0
    if part is PARTS[1]:
        assert torch.equal(z.grad, torch.ones_like(z))


def test_a_random_number_of_codebooks_is_used_in_training_only() -> None:
    quantizer, z = built(ScalarQuantizer(codebooks=4, dropout=1.0)).train(), drawn(1, 3, 5)
    torch.manual_seed(0)
    assert {quantizer(z).ids.shape[-1] for _ in range(60)} == {1, 2, 3, 4}
    assert quantizer.eval()(z).ids.shape[-1] == 4
    never = built(ScalarQuantizer(codebooks=4, dropout=0.0)).train()
    assert {never(z).ids.shape[-1] for _ in range(20)} == {4}


def test_codebooks_follow_the_vectors_of_training_batches() -> None:
    quantizer = built(ResidualQuantizer(codebooks=2, codes=4, restart=0.1, decay=0.0)).train()
    z = drawn(4, 50, 5, seed=6)
    first = float(quantizer(z).loss)
    for _, _ in itertools.product(range(20), [0]):
        last = float(quantizer(z, 2).loss)
    assert last < 0.7 * first
