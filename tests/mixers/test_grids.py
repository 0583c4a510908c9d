"""Depthwise convolutions and attention to blocks on grids, against torch's own and in their limits."""

from __future__ import annotations

import pytest
import torch
from tests.mixers.modules import built, some
from torch.nn import functional as F

from qkv.layers.context import Context, PositionGrid
from qkv.layers.norms import build_norm
from qkv.mixers.registry import build_branch
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.errors import SpecError
from qkv.spec.masks import Full
from qkv.spec.mixers.grids.convolved import ConvolvedFeedForward
from qkv.spec.mixers.grids.focal import FocalModulation
from qkv.spec.mixers.grids.reduced import ReducedAttention
from qkv.spec.parts import GridNorm, NoNorm
from qkv.system.errors import UserError

GRID = PositionGrid((3, 4))


def on(grid: PositionGrid, module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = module(x, Context(torch.arange(x.shape[1])[None], grid=grid))
    return y[0] if isinstance(y, tuple) else y


@pytest.mark.parametrize("leading", [0, 2])
def test_a_convolution_on_a_grid_leaves_what_precedes_it(leading: int) -> None:
    branch = built(ConvolvedFeedForward(hidden=5, axes=2))
    x = some(2, leading + 12)
    hidden = branch.up(x)
    cells = hidden[:, leading:].mT.unflatten(2, (3, 4))
    kernel = branch.convolution.weight
    mixed = F.conv2d(cells, kernel, branch.convolution.bias, padding=1, groups=5).flatten(2).mT
    expected = branch.down(F.gelu(torch.cat((hidden[:, :leading], mixed), 1)))
    assert torch.allclose(on(PositionGrid((3, 4), leading), branch, x), expected, atol=1e-12)


def test_a_kernel_of_its_middle_alone_is_a_feed_forward_network() -> None:
    branch, plain, x = built(ConvolvedFeedForward(axes=2)), built(FeedForward()), some(2, 12)
    with torch.no_grad():
        branch.convolution.weight.zero_()[:, :, 1, 1] = 1
        branch.convolution.bias.zero_()
    for name in ("up", "down"):
        getattr(plain, name).load_state_dict(getattr(branch, name).state_dict())
    assert torch.allclose(on(GRID, branch, x), on(GRID, plain, x), atol=1e-12)


def test_blocks_of_equal_vectors_are_read_as_one() -> None:
    """A convolution that averages four equal cells gives their vector, and each is read as often as the others."""
    branch = built(ReducedAttention(num_heads=3, axes=2, norm=NoNorm()))
    plain = built(Attention(num_heads=3, mask=Full()))
    with torch.no_grad():
        branch.reduction.weight.copy_(torch.eye(12)[:, :, None, None] / 4)
        branch.reduction.bias.zero_()
        plain.qkv.weight.copy_(torch.cat((branch.query.weight, branch.key_value.weight)))
        plain.qkv.bias.copy_(torch.cat((branch.query.bias, branch.key_value.bias)))
        plain.output.load_state_dict(branch.output.state_dict())
    blocks = some(2, 6)
    x = blocks.unflatten(1, (2, 3)).repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1, 2)
    grid = PositionGrid((4, 6))
    assert torch.allclose(on(grid, branch, x), on(grid, plain, x), atol=1e-12)


def test_without_gates_focal_modulation_is_position_wise() -> None:
    branch, x = built(FocalModulation(axes=2)), some(2, 12)
    with torch.no_grad():
        branch.input.weight[24:].zero_()
        branch.input.bias[24:].zero_()
    expected = branch.output(branch.input(x)[..., :12] * branch.context.bias)
    assert torch.allclose(on(GRID, branch, x), expected, atol=1e-12)


def test_the_contexts_of_focal_modulation_on_a_grid() -> None:
    branch, x = built(FocalModulation(levels=2, axes=2)), some(2, 13)
    q, c, gates = branch.input(x)[:, 1:].split((12, 12, 3), -1)
    cells, total = c.mT.unflatten(2, (3, 4)), 0
    for i, level in enumerate(branch.levels):
        cells = F.gelu(F.conv2d(cells, level.weight, padding=i + 1, groups=12))
        total = total + cells.flatten(2).mT * gates[..., i : i + 1]
    total = total + F.gelu(cells.mean((2, 3)))[:, None] * gates[..., 2:]
    expected = branch.output(q * branch.context(total))
    assert torch.allclose(on(PositionGrid((3, 4), 1), branch, x)[:, 1:], expected, atol=1e-12)


@pytest.mark.parametrize("leading", [0, 1])
def test_cells_that_fill_no_block_are_not_read(leading: int) -> None:
    branch, x = built(ReducedAttention(num_heads=2, axes=2)), some(1, leading + 15)
    grid, other = PositionGrid((3, 5), leading), x.clone()
    other[:, leading + 10 :] += 1  # the third row, and of the others the fifth column
    other[:, [leading + 4, leading + 9]] += 1
    same = [*range(leading + 4), *range(leading + 5, leading + 9)]
    assert torch.allclose(on(grid, branch, x)[:, same], on(grid, branch, other)[:, same], atol=1e-12)
    other[:, 0] += 1
    assert not torch.allclose(on(grid, branch, x)[:, same[1:]], on(grid, branch, other)[:, same[1:]])


def test_the_norm_of_a_grid_is_torch_s_group_norm_of_one_group() -> None:
    norm, x = build_norm(GridNorm(), 12).double(), some(2, 12)
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    expected = F.group_norm(x.mT, 1, norm.weight, norm.bias).mT
    assert torch.allclose(on(GRID, norm, x), expected, atol=1e-12)
    with pytest.raises(UserError, match="'grid_norm' needs positions on a grid of 2 axes"):
        norm(x, Context(torch.arange(12)[None]))


@pytest.mark.parametrize("part", [ConvolvedFeedForward(axes=2), ReducedAttention(axes=2)], ids=lambda part: part.kind)
def test_a_grid_of_other_axes_is_refused(part: ConvolvedFeedForward | ReducedAttention) -> None:
    with pytest.raises(UserError, match="built for a grid of 2 axes, and this one has 1; set axes"):
        on(PositionGrid((12,)), build_branch(part, 12), some(1, 12).float())


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"size": 4}, "has an odd size"),
        ({"norm": "layer_norm"}, "follows a convolution of the input"),
        ({"norm": "batch_norm", "place": "input"}, "each vector is normalised separately"),
    ],
)
def test_what_a_convolution_cannot_be_is_refused(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        ConvolvedFeedForward.parse(fields)


def test_blocks_are_not_normalised_over_the_batch() -> None:
    with pytest.raises(SpecError, match="each block is normalised separately"):
        ReducedAttention.parse({"norm": "batch_norm"})
