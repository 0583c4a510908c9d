"""RoPE whose frequencies depend on the length of a row: equations in float64, rows of a batch, decoding, bad input."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from qkv.layers.context import Context
from qkv.layers.relative import build_relative
from qkv.mixers.registry import build_branch
from qkv.spec.branches import Attention
from qkv.spec.errors import SpecError
from qkv.spec.parts import DynamicScaling, LongRopeScaling, Rope, RopeScaling

SHORT, LONG = (1.0, 1.5, 4.0), (2.0, 5.0, 30.0)
SCALINGS = {
    "longrope": LongRopeScaling(short=SHORT, long=LONG, original_length=4, magnitude=1.3),
    "dynamic": DynamicScaling(factor=3.0, original_length=4),
}


def angle(kind: str, position: int, pair: int, length: int) -> tuple[float, float]:
    """(angle of a pair of six features at a position, factor of queries and keys), as the papers say."""
    if kind == "longrope":
        divisor = (LONG if length > 4 else SHORT)[pair]
        return position / (divisor * 50.0 ** (2 * pair / 6)), 1.3
    base = 50.0 * (3.0 * max(length, 4) / 4 - 2.0) ** (6 / 4)
    return position / base ** (2 * pair / 6), 1.0


def rotated(x: Tensor, kind: str, length: int) -> Tensor:
    """Rows of (N, 6), turned position by position."""
    out = torch.empty_like(x)
    for position, row in enumerate(x):
        for pair in range(3):
            turn, factor = angle(kind, position, pair, length)
            a, b = float(row[pair]), float(row[pair + 3])
            out[position, pair] = factor * (a * math.cos(turn) - b * math.sin(turn))
            out[position, pair + 3] = factor * (a * math.sin(turn) + b * math.cos(turn))
    return out


def attention(scaling: RopeScaling) -> Attention:
    return Attention(num_heads=2, head_dim=6, relative=Rope(base=50.0, scaling=scaling))


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("length", [3, 4, 5, 9])
def test_a_row_is_turned_by_its_own_length(kind: str, length: int) -> None:
    """The row is alone, or padded beside a longer one."""
    relative = build_relative(attention(SCALINGS[kind]), 12)
    x = torch.randn(2, 1, 9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(length))
    alone = relative.rotate(x[:1, :, :length], x[:1, :, :length], Context(torch.arange(length)[None]))[0]
    beside = relative.rotate(x, x, Context(torch.arange(9)[None].expand(2, -1), lengths=torch.tensor([length, 9])))[1]
    expected = rotated(x[0, 0, :length], kind, length)
    torch.testing.assert_close(alone[0, 0], expected)
    torch.testing.assert_close(beside[0, 0, :length], expected)
    torch.testing.assert_close(beside[1, 0], rotated(x[1, 0], kind, 9))


@pytest.mark.parametrize("kind", SCALINGS)
def test_exactness_ends_at_the_original_length(kind: str) -> None:
    branch = build_branch(attention(SCALINGS[kind]), 12).double().eval()
    assert branch.spec.exactness == (4, False)
    x = torch.randn(1, 6, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        short = branch(x[:, :4], Context(torch.arange(4)[None]))[0]
        long = branch(x, Context(torch.arange(6)[None]))[0]
    assert not torch.allclose(short, long[:, :4])  # earlier outputs depend on the length of the row


def test_bad_divisors_are_refused() -> None:
    with pytest.raises(SpecError, match="long: 0 given, but divisors of frequencies are above 0"):
        LongRopeScaling.parse({"short": [1.0], "long": [0.0], "original_length": 4})
    part = attention(LongRopeScaling(short=(1.0,), long=LONG, original_length=4))
    assert [str(problem.sentence) for problem in part.width_problems(12)] == [
        "1 divisors are given for 3 pairs; give one for each"
    ]
