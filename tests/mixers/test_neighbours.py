"""Mixers of neighbours on a grid against loops over its cells and torch's own pooling."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from tests.mixers.modules import applied, built, some
from torch import Tensor, nn

from qkv.layers.context import Context, PositionGrid
from qkv.mixers.registry import build_branch
from qkv.spec.branches import Branch
from qkv.spec.mixers.neighbours import MONet, Pooling, SpatialShift
from qkv.system.errors import UserError

GRIDS = [PositionGrid((3, 4)), PositionGrid((3, 4), 1), PositionGrid((2, 3, 2)), PositionGrid((1, 5), 2)]


def on(grid: PositionGrid, branch: Any, x: Tensor, lengths: Tensor | None = None) -> Tensor:
    return branch(x, Context(torch.arange(x.shape[1])[None], lengths, grid=grid))[0]


def cells(grid: PositionGrid) -> list[tuple[int, ...]]:
    return list(product(*map(range, grid.sizes)))


def shifted(x: Tensor, grid: PositionGrid) -> Tensor:
    """Feature by feature: its group says from which neighbour it comes, and at a border it stays."""
    y, places = x.clone(), cells(grid)
    groups = torch.arange(x.shape[2]).tensor_split(2 * len(grid.sizes))
    for at, place in enumerate(places):
        for number, group in enumerate(groups):
            axis, step = number // 2, (-1, 1)[number % 2]
            near = tuple(c + step * (a == axis) for a, c in enumerate(place))
            if near in places:
                y[:, grid.leading + at, group] = x[:, grid.leading + places.index(near)][:, group]
    return y


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_the_shift_on_a_grid(grid: PositionGrid) -> None:
    branch, x = built(SpatialShift(hidden=14)), some(2, grid.leading + len(cells(grid)))
    expected = branch.down(shifted(nn.functional.gelu(branch.up(x)), grid))
    assert torch.allclose(on(grid, branch, x), expected, atol=1e-12)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_monet_shifts_each_of_its_pieces(grid: PositionGrid) -> None:
    branch, x = built(MONet(hidden=8, rank=5)), some(2, grid.leading + len(cells(grid)))
    a, low, d = (shifted(piece, grid) for piece in branch.input(x).split((8, 5, 8), -1))
    still = Context(torch.arange(x.shape[1])[None])
    expected = branch.output(branch.norm(a, still) * branch.expand_norm(branch.expand(low), still) + d)
    assert torch.allclose(on(grid, branch, x), expected, atol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_pooling_on_a_grid_is_that_of_poolformer(size: int) -> None:
    grid, branch = PositionGrid((4, 5), 1), build_branch(Pooling(size=size), 12)
    x = some(2, 21)
    pool = nn.AvgPool2d(size, stride=1, padding=size // 2, count_include_pad=False)
    image = x[:, 1:].unflatten(1, (4, 5)).permute(0, 3, 1, 2)
    expected = (pool(image) - image).permute(0, 2, 3, 1).flatten(1, 2)
    y = on(grid, branch, x)
    assert torch.allclose(y[:, 1:], expected, atol=1e-12)
    assert not y[:, 0].any(), "a class token is not on the grid"


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("size", [2, 3])
def test_pooling_leaves_padding_out(grid: PositionGrid, size: int) -> None:
    branch, x, places = build_branch(Pooling(size=size), 12), some(1, grid.leading + len(cells(grid))), cells(grid)
    length = x.shape[1] - 3
    y = on(grid, branch, x, torch.tensor([length]))
    for at, place in enumerate(places[: length - grid.leading]):
        near = [
            grid.leading + other
            for other, cell in enumerate(places)
            if other + grid.leading < length
            and all(-(size // 2) <= b - a < size - size // 2 for a, b in zip(place, cell, strict=True))
        ]
        assert torch.allclose(y[0, grid.leading + at], x[0, near].mean(0) - x[0, grid.leading + at], atol=1e-12)


def test_two_layers_of_shifts_see_two_steps_along_each_axis() -> None:
    grid, branches = PositionGrid((5, 5)), [built(SpatialShift()), built(SpatialShift())]
    x = some(1, 25).requires_grad_()
    y: Tensor = x
    for branch in branches:
        y = on(grid, branch, y)
    (grad,) = torch.autograd.grad(y[0, 12].sum(), x)
    seen = {place for at, place in enumerate(cells(grid)) if grad[0, at].abs().max() > 1e-12}
    assert seen == {(r, c) for r, c in cells(grid) if abs(r - 2) + abs(c - 2) in (0, 2)}


def test_monet_without_a_shift_is_position_wise() -> None:
    branch, x = built(MONet(shift=False)), some(1, 5)
    assert not branch.spec.mixes
    assert branch.causal
    assert torch.allclose(applied(branch, x)[:, 2:3], applied(branch, x[:, 2:3]), atol=1e-12)


@pytest.mark.parametrize("part", [SpatialShift(), Pooling(), MONet()])
def test_packed_documents_on_a_grid_are_refused(part: Branch) -> None:
    context = Context(torch.arange(4)[None], segments=torch.tensor([[0, 0, 1, 1]]), grid=PositionGrid((2, 2)))
    with pytest.raises(UserError, match="packed documents have none"):
        build_branch(part, 12)(some(1, 4, dtype=torch.float32), context)


def test_grids_of_four_axes_are_refused() -> None:
    with pytest.raises(UserError, match="up to 3 axes, and this one has 4"):
        on(PositionGrid((1, 2, 1, 2)), build_branch(Pooling(), 12), some(1, 4))
