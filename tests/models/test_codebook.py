"""The codebook against a loop in double precision: nearest code, moving averages, restart and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from qkv.models.heads.codebook import Codebook
from qkv.models.heads.head import build_head
from qkv.spec.errors import SpecError
from qkv.spec.heads import CodebookHead
from qkv.spec.signals.images import Patches

PART = CodebookHead(codes=5, code_width=3, grid=(2, 3), cell=2, height=4, width=5, channels=1)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled(restart: float, decay: float = 0.75) -> Codebook:
    """A codebook in double precision after some use."""
    book = Codebook(5, 3, decay, restart).double()
    book.vectors.copy_(drawn(5, 3, seed=1))
    book.counts.copy_(torch.tensor([2.0, 0.5, 4.0, 0.01, 1.0], dtype=torch.float64))
    book.sums.copy_(book.vectors * book.counts[:, None])
    return book


def test_each_vector_gets_the_nearest_code() -> None:
    book, z = filled(0.0).eval(), drawn(2, 4, 3)
    found = book(z)
    for row in range(2):
        for place in range(4):
            distances = [float(((z[row, place] - code) ** 2).sum()) for code in book.vectors]
            assert int(found.ids[row, place]) == int(np.argmin(distances))
            assert torch.equal(found.q[row, place], book.vectors[found.ids[row, place]])


def test_codes_are_moving_averages_of_the_vectors_nearest_to_them() -> None:
    book, z = filled(0.0).train(), drawn(2, 4, 3)
    counts, sums = book.counts.numpy().copy(), book.sums.numpy().copy()
    ids = book(z).ids.flatten().tolist()
    for code in range(5):
        mine = [z.flatten(0, 1)[i].numpy() for i, found in enumerate(ids) if found == code]
        counts[code] = 0.75 * counts[code] + 0.25 * len(mine)
        sums[code] = 0.75 * sums[code] + 0.25 * np.sum([*mine, np.zeros(3)], axis=0)
    np.testing.assert_allclose(book.counts.numpy(), counts, rtol=1e-12)
    np.testing.assert_allclose(book.vectors.numpy(), sums / counts[:, None], rtol=1e-12)
    before = book.vectors.clone()
    book.eval()(z)
    assert torch.equal(book.vectors, before)


def test_a_code_that_is_hardly_used_becomes_a_vector_of_the_batch() -> None:
    book, z = filled(0.1).train(), drawn(1, 4, 3)
    book.vectors[3] = 100.0  # nearest to none
    book(z)
    assert (z[0] == book.vectors[3]).all(-1).any()
    assert book.counts[3] == 1
    kept = filled(0.0).train()
    kept.vectors[3] = 100.0
    kept(z)
    assert not (z[0] == kept.vectors[3]).all(-1).any()


def test_the_first_batch_gives_the_initial_codes() -> None:
    head: Any = build_head(PART, 4, None)
    head.initialise(0.02)
    z = head.map(torch.randn(2, 6, 4)).flatten(0, 1)
    head.codebook.update(z.detach(), head.codebook.nearest(z))
    assert all((z == code).all(-1).any() for code in head.codebook.vectors)


def test_gradients_pass_the_codes_unchanged() -> None:
    head: Any = build_head(PART, 4, None).double().eval()
    head.initialise(0.02)
    x = drawn(2, 6, 4).requires_grad_()
    found = head.reconstructed(x)
    weights = drawn(2, 1, 4, 5, seed=2)
    q = found.codes.q.detach().requires_grad_()
    (expected,) = torch.autograd.grad((head.decoded(q) * weights).sum(), q)
    (through,) = torch.autograd.grad((found.pixels * weights).sum(), x, retain_graph=True)
    torch.testing.assert_close(through, expected @ head.map.weight)
    (pulled,) = torch.autograd.grad(found.commitment, x)
    torch.testing.assert_close(pulled, 2 * (found.codes.z - found.codes.q) / 36 @ head.map.weight)
    assert head.codebook.vectors.grad is None


def test_pixels_of_the_codes_are_the_reconstruction() -> None:
    head: Any = build_head(PART.changed(upsampling=(6,)), 4, None).eval()
    head.initialise(0.02)
    x = torch.randn(2, 6, 4)
    torch.testing.assert_close(head.pixels(head.ids(x)), head(x))
    assert head(x).shape == (2, 1, 4, 5)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"upsampling": (4, 4)}, "2 doublings do not divide the 2 pixels of a code"), ({"height": 5}, "cover only 4 × 6")],
)
def test_sizes_that_do_not_fit_are_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=named):
        PART.changed(**wrong)


def test_sizes_are_those_of_the_front_end() -> None:
    front = Patches(patch=2, height=8, width=12, channels=1, stem=(4,))
    found = CodebookHead().reading(front)
    assert (found.grid, found.cell, found.height, found.width, found.channels) == ((2, 3), 4, 8, 12, 1)
    with pytest.raises(SpecError, match="7 given, but the front end has 8"):
        CodebookHead(height=7).reading(front)
