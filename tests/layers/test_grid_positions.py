"""Positions on a grid against loops over rows and columns and against Swin of transformers; a model with patches."""

from __future__ import annotations

import cmath
import math
from itertools import product
from typing import Any, ClassVar

import pytest
import torch
from tests.mixers.modules import built, some
from torch import Tensor, nn

from qkv.costs.cost import cost
from qkv.frontends.placed import PlacedFrontend
from qkv.layers.context import Context, PositionGrid
from qkv.layers.layout import Layouts
from qkv.layers.positions import build_positions
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.errors import SpecError
from qkv.spec.frontends import Placed
from qkv.spec.heads import ClassificationHead
from qkv.spec.masks import Full
from qkv.spec.mixers.neighbours import MONet, Pooling, SpatialShift
from qkv.spec.mixers.position_matrices import GMLP, RandomMixing, TokenMLP
from qkv.spec.model import Block, Latents, Model, Queries
from qkv.spec.parts import Bias2D, NoNorm, Rope2D, Sinusoidal2D
from qkv.spec.register import implements
from qkv.system.errors import UserError

GRID = PositionGrid((3, 4), 1)
CELLS = [(0, 0), *product((1, 2, 3), (1, 2, 3, 4))]
"""(row, column) of each position; the class token is at (0, 0)."""


class Patches(Placed):
    """Twelve vectors on a grid of 3 × 4, after a class token."""

    grid_axes: ClassVar[int] = 2
    norm: NoNorm = NoNorm()

    @property
    def grid(self) -> tuple[int, int]:
        return 3, 4

    @property
    def num_positions(self) -> int:
        return 13


@implements(Patches)
class PatchesFrontend(PlacedFrontend):
    def __init__(self, part: Any, stack: Any, width: int, table: None = None):
        super().__init__(part, stack, width)
        self.first = nn.Parameter(torch.zeros(1, 1, width))

    def layouts(self) -> Layouts:
        return {}

    def count(self, signal: Signal) -> int:
        return 1 + signal.values.shape[1]

    def grid(self, signal: Signal) -> PositionGrid:
        return GRID

    def random(self, rows: int, length: int, generator: torch.Generator) -> Signal:
        return Signal(torch.randn(rows, 12, 8, generator=generator))

    def forward(self, signal: Signal, context: Context) -> Tensor:
        return self.placed(torch.cat((self.first.expand(len(signal.values), -1, -1), signal.values), 1), context)


def context(grid: PositionGrid = GRID) -> Context:
    return Context(torch.arange(grid.leading + math.prod(grid.sizes))[None], grid=grid)


def model(*branches: Any, **fields: Any) -> Model:
    blocks = [{"branches": list(branches)}]
    data = {"width": 8, "frontend": Patches(), "blocks": blocks, "head": ClassificationHead(num_classes=2)}
    return Model.parse(data | fields)


def waves(place: float, count: int, base: float) -> list[float]:
    angles = [place / base ** (2 * (i // 2) / count) for i in range(count)]
    return [math.cos(angle) if i % 2 else math.sin(angle) for i, angle in enumerate(angles)]


def test_sinusoids_of_row_and_column() -> None:
    part = build_positions(Sinusoidal2D(base=50.0), 13, 12)
    assert part is not None
    vectors = part(part.places(context()), torch.float64)
    expected = [waves(row, 6, 50.0) + waves(column, 6, 50.0) for row, column in CELLS]
    torch.testing.assert_close(vectors, torch.tensor([expected], dtype=torch.float64))


@pytest.mark.parametrize("step", [(0, 1), (1, 0), (2, -1)])
def test_a_step_on_the_grid_is_a_rotation_that_is_the_same_everywhere(step: tuple[int, int]) -> None:
    """PE(p + k) = T_k PE(p), T_k a rotation of each pair by its frequency and the axis' own part of k."""
    part = build_positions(Sinusoidal2D(), 0, 16)
    assert part is not None

    def pairs(row: int, column: int) -> list[complex]:
        v = part(torch.tensor([row, column]), torch.float64).tolist()
        return [complex(v[2 * i + 1], v[2 * i]) for i in range(8)]

    turns = [cmath.exp(1j * (step[i // 4] / 10000 ** (2 * (i % 4) / 8))) for i in range(8)]
    for row, column in ((1, 2), (5, 3), (2, 7)):
        moved = pairs(row + step[0], column + step[1])
        assert all(abs(a * t - b) < 1e-12 for a, t, b in zip(pairs(row, column), turns, moved, strict=True))


def turned(x: Tensor, cell: tuple[int, int], rotated: int, base: float) -> Tensor:
    """Pairs (i, i + r/2) as complex numbers: the first quarter by the row, the next one by the column."""
    y, quarter = x.clone(), rotated // 4
    for i in range(rotated // 2):
        angle = cell[i // quarter] * base ** (-2 * (i % quarter) / (rotated // 2))
        z = complex(x[i], x[i + rotated // 2]) * cmath.exp(1j * angle)
        y[i], y[i + rotated // 2] = z.real, z.imag
    return y


@pytest.mark.parametrize(("fraction", "rotated"), [(1.0, 8), (0.5, 4)])
def test_attention_with_rope_on_a_grid(fraction: float, rotated: int) -> None:
    rope = Rope2D(base=20.0, fraction=fraction)
    ours, x = built(Attention(num_heads=2, head_dim=8, mask=Full(), relative=rope)), some(1, 13)
    out = []
    q, k, v = ours.qkv(x[0]).detach().split(16, -1)
    for head in (slice(0, 8), slice(8, 16)):
        scores = torch.tensor(
            [
                [
                    float(turned(a[head], at, rotated, 20.0) @ turned(b[head], by, rotated, 20.0))
                    for b, by in zip(k, CELLS, strict=True)
                ]
                for a, at in zip(q, CELLS, strict=True)
            ],
            dtype=torch.float64,
        )
        out.append((scores / math.sqrt(8)).softmax(-1) @ v[:, head])
    expected = ours.output(torch.cat(out, -1))
    torch.testing.assert_close(ours(x, context())[0][0], expected)


def test_rope_of_normalised_coordinates_has_the_same_range_on_every_grid() -> None:
    """Centres of the cells from -1 to 1, times 2π, as complex turns; the class token is not turned."""
    ours = built(Attention(num_heads=1, head_dim=8, mask=Full(), relative=Rope2D(base=20.0, normalised=True)))
    x = some(1, 13)
    q, k, v = ours.qkv(x[0]).detach().split(8, -1)
    cells = [(2 * math.pi * ((2 * r - 1) / 3 - 1), 2 * math.pi * ((2 * c - 1) / 4 - 1)) for r, c in CELLS[1:]]
    places = [(0.0, 0.0), *cells]
    q, k = (torch.stack([turned(a, at, 8, 20.0) for a, at in zip(part, places, strict=True)]) for part in (q, k))
    expected = ours.output((q @ k.T / math.sqrt(8)).softmax(-1) @ v)
    torch.testing.assert_close(ours(x, context())[0][0], expected)


def test_scores_under_rope_depend_on_the_offset_alone() -> None:
    """Equal content everywhere: the score of two cells is that of any two with the same offset, in both axes."""
    grid = PositionGrid((4, 5))
    rope = built(Attention(num_heads=1, head_dim=8, relative=Rope2D())).relative
    same = torch.ones(1, 1, 20, 8, dtype=torch.float64)
    q, k = rope.rotate(same, same, context(grid))
    scores, cells = (q @ k.transpose(2, 3))[0, 0], list(product(range(4), range(5)))
    found: dict[tuple[int, int], float] = {}
    for (i, a), (j, b) in product(enumerate(cells), enumerate(cells)):
        offset = a[0] - b[0], a[1] - b[1]
        assert abs(found.setdefault(offset, float(scores[i, j])) - scores[i, j]) < 1e-12
    assert abs(found[0, 1] - found[1, 0]) < 1e-12, "one frequency table for both axes"
    assert abs(found[1, 1] - found[0, 1]) > 0.1


def test_the_bias_table_is_read_as_by_swin_and_beit() -> None:
    swin = pytest.importorskip("transformers.models.swin.modeling_swin").SwinRelativePositionBias(3, (3, 4))
    beit = pytest.importorskip("transformers.models.beit.modeling_beit").BeitRelativePositionBias
    ours = built(Attention(num_heads=3, mask=Full(), relative=Bias2D(sizes=(3, 4)))).relative
    for index, grid in (
        (swin.relative_position_index.view(12, 12), PositionGrid((3, 4))),
        (beit.generate_relative_position_index((3, 4)), GRID),
    ):
        q = torch.zeros(1, 3, len(index), 4, dtype=torch.float64)
        bias = ours.bias(q, None, 1.0, context(grid))
        assert torch.equal(bias[0], ours.table[index].permute(2, 0, 1))


def test_a_class_token_has_biases_of_its_own() -> None:
    ours = built(Attention(num_heads=2, mask=Full(), relative=Bias2D(sizes=(3, 4)))).relative
    bias = ours.bias(torch.zeros(1, 2, 13, 4, dtype=torch.float64), None, 1.0, context())[0]
    query, key, both = ours.table[-3:]
    assert len(ours.table) == 5 * 7 + 3
    assert torch.equal(bias[:, 0, 1:], query[:, None].expand(2, 12))
    assert torch.equal(bias[:, 1:, 0], key[:, None].expand(2, 12))
    assert torch.equal(bias[:, 0, 0], both)
    assert len(bias[0, 1:, 1:].flatten().unique()) == 5 * 7


def test_layers_share_the_first_one_s_table_of_biases() -> None:
    shared = Attention(num_heads=2, mask=Full(), relative=Bias2D(shared=True))
    m = build(model(shared, shared, FeedForward()))
    tables = [name for name, _ in m.named_parameters() if name.endswith("relative.table")]
    assert tables == ["blocks.0.branches.0.body.relative.table"]
    first, second = (branch.relative for branch in m.branches[:2])
    with torch.no_grad():
        first.table.normal_(generator=torch.Generator().manual_seed(2))
    q = torch.zeros(1, 2, 13, 4)
    assert torch.equal(second.bias(q, None, 1.0, context()), first.bias(q, None, 1.0, context()))
    m(Signal(torch.randn(2, 12, 8)))[0].sum().backward()
    assert first.table.grad is not None


BRANCHES = (
    Attention(num_heads=2, mask=Full(), relative=Rope2D()),
    Attention(num_heads=2, mask=Full(), relative=Rope2D(normalised=True)),
    Attention(num_heads=2, mask=Full(), relative=Bias2D()),
    TokenMLP(),
    GMLP(),
    RandomMixing(),
    SpatialShift(),
    Pooling(),
    MONet(),
    FeedForward(),
)


def test_a_model_of_patches_has_the_sizes_of_its_front_end() -> None:
    spec = model(*BRANCHES, context_length=99, frontend=Patches(positions=Sinusoidal2D()))
    m = build(spec)
    by_kind = {branch.spec.kind: branch for branch in m.branches}
    assert [by_kind[kind].length for kind in ("token_mlp", "gmlp", "random_mixing")] == [13, 13, 13]
    assert m.branches[2].relative.table.shape == (5 * 7 + 3, 2)  # type: ignore[union-attr]
    x = torch.randn(2, 12, 8)
    y = m(Signal(x))[0]
    assert y.shape == (2, 2)
    y.sum().backward()
    assert all(p.grad is not None for p in m.parameters())
    assert not torch.allclose(m(Signal(x.flip(1)))[0], y)
    assert cost(spec, 2).parameters == sum(p.numel() for p in m.parameters())


def test_queries_at_the_places_of_the_patches() -> None:
    reads = Block.parse({"branches": ["cross_attention(2)"]})
    queries = Queries(positions=Sinusoidal2D())
    m = build(model(*reads.branches, latents=Latents(count=3, blocks=(reads,)), queries=queries))
    assert m(Signal(torch.randn(2, 12, 8)))[0].shape == (2, 2)


@pytest.mark.parametrize(
    "relative", [Rope2D(), Rope2D(normalised=True), Bias2D(sizes=(3, 4))], ids=lambda part: part.kind
)
def test_a_sequence_has_no_rows_and_columns(relative: Any) -> None:
    ours = built(Attention(num_heads=2, head_dim=8, mask=Full(), relative=relative))
    with pytest.raises(
        UserError, match=f"'{relative.kind}' needs positions on a grid of 2 axes, .* these are on a seq"
    ):
        ours(some(1, 13), Context(torch.arange(13)[None]))
    with pytest.raises(UserError, match=f"'{relative.kind}' needs positions on a grid of 2 axes, .* on a grid of 3"):
        ours(some(1, 12), context(PositionGrid((2, 2, 3))))
    with pytest.raises(SpecError, match=f"branches.0.relative: '{relative.kind}' needs positions on a grid"):
        Model.parse({"blocks": [{"branches": [Attention(num_heads=2, mask=Full(), relative=relative)]}]})
    latents = {"blocks": [{"branches": ["cross_attention", Attention(relative=relative)]}]}
    with pytest.raises(SpecError, match=r"latents\.blocks\.0\.branches\.1\.relative: "):
        model("cross_attention", latents=latents)


def test_sinusoids_of_rows_and_columns_need_them() -> None:
    for place, data in {
        "frontend.positions": {"frontend": {"kind": "text", "positions": "sinusoidal_2d"}},
        "queries.positions": {
            "frontend": Patches(),
            "latents": {},
            "blocks": [{"branches": ["cross_attention"]}],
            "queries": {"count": 3, "positions": "sinusoidal_2d"},
        },
    }.items():
        with pytest.raises(
            SpecError, match=f"{place}: 'sinusoidal_2d' needs positions on a grid of 2 axes, such as image patches"
        ):
            Model.parse(data)


def test_the_table_of_another_grid_is_refused() -> None:
    ours = built(Attention(num_heads=2, mask=Full(), relative=Bias2D(sizes=(4, 3))))
    with pytest.raises(UserError, match="has a table for a 4 × 3 grid, but the grid of the input is 3 × 4"):
        ours(some(1, 13), context())


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"kind": "rope_2d", "fraction": 0.75}, "6 features of a head would be rotated; make that a multiple of 4"),
        ({"kind": "bias_2d", "sizes": [0, 3]}, "0 × 3 given; each axis has 1 to 10,000 positions"),
        ({"kind": "bias_2d", "sizes": [3]}, "should have at least 2"),
    ],
)
def test_settings_that_fit_no_grid(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        model({"kind": "attention", "num_heads": 1, "head_dim": 8, "relative": data})
