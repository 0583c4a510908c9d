"""Attention in windows of a grid against loops over its cells, and its limits."""

from __future__ import annotations

import math

import pytest
import torch
from tests.mixers.modules import applied, built, some

from qkv.layers.context import Context, PositionGrid
from qkv.mixers.registry import build_branch
from qkv.ops import windows
from qkv.spec.branches import Attention
from qkv.spec.masks import Full
from qkv.spec.mixers.grids.windows import NoWindowBias, WindowAttention
from qkv.spec.parts import Bias2D
from qkv.system.errors import UserError


def on(grid: PositionGrid, branch: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return branch(x, Context(torch.arange(x.shape[1])[None], grid=grid))[0]


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_windows_of_a_grid_read_their_cells_and_the_zeros_that_fill_them(shift: int) -> None:
    """One head without a bias: cell by cell, with the zero cells behind the grid among the keys."""
    rows, columns, size = 5, 7, 3
    branch = built(WindowAttention(num_heads=1, window=size, shift=shift, axes=2, relative=NoWindowBias()))
    x = some(2, rows * columns)
    found, place = on(PositionGrid((rows, columns)), branch, x), torch.zeros(12, dtype=x.dtype)
    for i in range(rows):
        for j in range(columns):
            # Windows begin at ``shift``; the first cells are alone with each other.
            own = [(c - shift) // size for c in (i, j)]
            near = [(r, c) for r in range(6) for c in range(9) if [(r - shift) // size, (c - shift) // size] == own]
            for b in range(2):
                cells = [x[b, r * columns + c] if r < rows and c < columns else place for r, c in near]
                keys = torch.stack([branch.qkv(cell) for cell in cells])
                q = branch.qkv(x[b, i * columns + j])[:12]
                weights = (keys[:, 12:24] @ q / math.sqrt(12)).softmax(0)
                expected = branch.output(weights @ keys[:, 24:])
                assert torch.allclose(found[b, i * columns + j], expected, atol=1e-12), (i, j)


def test_one_window_is_attention_with_a_bias_per_offset() -> None:
    own = built(WindowAttention(num_heads=3, window=4, axes=2))
    plain = built(Attention(num_heads=3, mask=Full(), relative=Bias2D(sizes=(4, 4))))
    plain.load_state_dict(
        {name: tensor for name, tensor in own.state_dict().items() if "table" not in name}, strict=False
    )
    with torch.no_grad():
        plain.relative.table[:-3] = own.relative.table
    grid, x = PositionGrid((4, 4)), some(2, 16)
    assert torch.allclose(on(grid, own, x), on(grid, plain, x), atol=1e-12)


def test_a_window_that_covers_an_axis_is_not_shifted() -> None:
    moved = built(WindowAttention(num_heads=3, window=4, shift=2, axes=2))
    still = built(WindowAttention(num_heads=3, window=4, axes=2))
    x = some(2, 24)
    assert torch.equal(on(PositionGrid((4, 6)), moved, x), on(PositionGrid((4, 6)), still, x))
    assert not torch.allclose(
        on(PositionGrid((6, 5)), moved, some(2, 30)), on(PositionGrid((6, 5)), still, some(2, 30))
    )


def test_grids_that_its_windows_do_not_have_are_refused() -> None:
    branch = build_branch(WindowAttention(window=2, axes=2), 12)
    for grid in (PositionGrid((12,)), PositionGrid((3, 3), 3)):
        with pytest.raises(UserError, match="windows of 2 axes, without positions before the grid"):
            on(grid, branch, some(1, 12).float())
    with pytest.raises(UserError, match="but the positions are on a sequence"):
        applied(branch, some(1, 12).float())
    with pytest.raises(UserError, match="2 given, but it must be less than the window 2"):
        WindowAttention.parse({"window": 2, "shift": 2})


@pytest.mark.parametrize("sizes", [(6,), (4, 6), (2, 4, 6)])
def test_cells_of_windows_are_where_they_were(sizes: tuple[int, ...]) -> None:
    x = torch.arange(2.0 * math.prod(sizes) * 3).view(2, *sizes, 3)
    parts = windows.windows_of(x, 2)
    assert parts.shape == (2, math.prod(sizes) // 2 ** len(sizes), 2 ** len(sizes), 3)
    assert torch.equal(windows.cells_of(parts, 2, sizes), x)
    first = x[(slice(None), *(slice(2) for _ in sizes))].flatten(1, -2)
    assert torch.equal(parts[:, 0], first)


def test_packed_documents_have_windows_of_their_own() -> None:
    branch, x = built(WindowAttention(num_heads=2, window=3, shift=1)), some(1, 9)
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]])
    alone = torch.cat((applied(branch, x[:, :4]), applied(branch, x[:, 4:])), 1)
    assert torch.allclose(applied(branch, x, segments=segments), alone, atol=1e-12)
