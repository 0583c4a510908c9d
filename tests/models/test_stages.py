"""Stages of models of images: merges against loops over cells, places and widths of layers, cost, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import qkv
from qkv.costs.cost import cost
from qkv.interop.mapping.normal import normal
from qkv.layers.context import Context, PositionGrid
from qkv.layers.layout import layouts
from qkv.models.rollout import heat
from qkv.models.stack.merges import build_merge
from qkv.spec.errors import SpecError
from qkv.spec.model import Model
from qkv.spec.models.merges import PatchMerging, StridedConvolution
from qkv.spec.models.surgery import folded, unrolled
from qkv.spec.parts import LayerNorm
from qkv.system.errors import UserError

WINDOWS = "window_attention(num_heads=2, window=3, shift=1)"
BLOCKS: list[dict[str, Any]] = [
    {"branches": [WINDOWS, "feed_forward"]},
    {"branches": [WINDOWS, "feed_forward"], "merge": "patch_merging"},
    {"branches": ["pooling", "feed_forward"]},
    {
        "branches": ["attention(2, mask=full)", "feed_forward"],
        "merge": {
            "kind": "strided_convolution",
            "width": 10,
            "norm": "layer_norm",
            "positions": "learned",
            "class_token": True,
        },
    },
]


def staged(**changed: Any) -> Model:
    return Model.parse(
        {
            "width": 8,
            "frontend": {
                "kind": "patches",
                "patch": 2,
                "height": 13,
                "width": 10,
                "channels": 1,
                "positions": "none",
            },
            "blocks": BLOCKS,
            "head": {"kind": "classification", "num_classes": 3, "pooling": "first"},
            **changed,
        }
    )


def pixels(rows: int = 2) -> Tensor:
    return torch.randn(rows, 1, 13, 10, generator=torch.Generator().manual_seed(rows))


def on(sizes: tuple[int, ...], leading: int = 0) -> Context:
    count = leading + sizes[0] * sizes[1]
    return Context(torch.arange(count)[None], grid=PositionGrid(sizes, leading))


def test_every_layer_has_its_place_and_width() -> None:
    spec = staged()
    assert [tuple(place) for place in spec.places] == [(30, (6, 5)), (9, (3, 3)), (9, (3, 3)), (5, (2, 2))]
    assert spec.widths(spec.width) == (8, 16, 16, 10)
    assert spec.leaving(spec.width) == 10
    assert (spec.causal, spec.decodes) == (False, False)
    model = qkv.build(spec)
    assert model(qkv.Signal(pixels()))[0].shape == (2, 3)
    assert layouts(model)["blocks.3.merge.positions.table"].sizes == (2, 2)
    assert heat(model, qkv.Signal(pixels())) is None


@pytest.mark.parametrize("first", [True, False])
def test_merged_patches_are_joined_column_by_column(first: bool) -> None:
    merge = build_merge(PatchMerging(width=6, norm_first=first, bias=True), 4).double()
    x, joined = torch.randn(2, 15, 4, dtype=torch.float64), []
    for r in (0, 2):
        for c in (0, 2, 4):
            near = [
                x[:, i * 5 + j] if i < 3 and j < 5 else torch.zeros_like(x[:, 0])
                for j in (c, c + 1)
                for i in (r, r + 1)
            ]
            cells = torch.cat(near, -1)
            width = cells.shape[-1] if first else 6
            plain = (lambda v, width=width: F.layer_norm(v, (width,))) if first else (lambda v: v)
            mapped = merge.map(plain(cells))
            joined.append(mapped if first else F.layer_norm(mapped, (6,)))
    assert torch.allclose(merge(x, on((3, 5))), torch.stack(joined, 1), atol=1e-6)
    assert merge.after(on((3, 5))).grid == PositionGrid((2, 3))


def test_a_strided_convolution_reads_a_border_of_zeros() -> None:
    part = StridedConvolution(width=6, size=3, stride=2, padding=1, norm_before=LayerNorm())
    merge, x = build_merge(part, 4).double(), torch.randn(2, 15, 4, dtype=torch.float64)
    found, normed = merge(x, on((3, 5))), F.layer_norm(x, (4,))
    for r in range(2):
        for c in range(3):
            total = merge.map.bias.expand(2, -1)
            for i in range(3):
                for j in range(3):
                    row, column = 2 * r + i - 1, 2 * c + j - 1
                    if row in range(3) and column in range(5):
                        total = total + normed[:, row * 5 + column] @ merge.map.weight[:, :, i, j].t()
            assert torch.allclose(found[:, r * 3 + c], total, atol=1e-6)


def test_cost_is_counted_in_every_stage() -> None:
    spec, model = staged(), qkv.build(staged())
    counted = cost(spec, batch_size=2)
    assert counted.parameters == sum(p.numel() for p in model.parameters())
    assert counted.parts["merge"].parameters == sum(
        p.numel() for name, p in model.named_parameters() if ".merge." in name
    )
    deep = staged(blocks=[BLOCKS[0]] * 6 + [BLOCKS[1]] + [BLOCKS[2]] * 5)
    assert cost(deep).parameters == sum(p.numel() for p in qkv.build(deep).parameters())


def test_a_stack_in_stages_is_listed_folded_and_compared() -> None:
    spec = staged()
    assert folded(unrolled(spec)) == spec
    assert normal(spec) == normal(
        spec.changed(blocks=(*spec.blocks[:1], spec.blocks[1].changed(merge=PatchMerging(width=16)), *spec.blocks[2:]))
    )


def test_blocks_recompute_their_activations_with_merges() -> None:
    model, results = qkv.build(staged()), []
    for again in (False, True):
        model.zero_grad()
        model.recompute_blocks(again)
        model(qkv.Signal(pixels()))[0].square().sum().backward()
        results.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"frontend": {"kind": "text", "vocab_size": 5}}, "a merge needs a grid of 2 axes"),
        ({"frontend": {"kind": "patches", "class_token": True}}, "cannot be merged"),
        ({"rounds": 2}, "applied once"),
        ({"depth_average": {}}, "a depth average read vectors of one width"),
        ({"latents": {}}, "merge neighbours on a grid"),
        (
            {"blocks": [BLOCKS[0], {**BLOCKS[1], "merge": "strided_convolution(size=9, padding=0)"}]},
            "no position of a grid of 6 × 5 is left",
        ),
        ({"blocks": [BLOCKS[0], {**BLOCKS[1], "merge": "patch_merging(norm=batch_norm)"}]}, "use layer_norm, rms_norm"),
        ({"blocks": [BLOCKS[0], {**BLOCKS[1], "merge": "patch_merging(width=9)"}]}, "heads do not divide the width 9"),
    ],
    ids=["text", "class token", "rounds", "average", "latents", "too small", "batch norm", "heads"],
)
def test_what_cannot_have_stages_is_refused(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError) as refusal:
        staged(**changed)
    assert sentence in str(refusal.value)


def test_rows_that_are_no_grid_are_refused() -> None:
    merge = build_merge(PatchMerging(), 4)
    x = torch.randn(2, 6, 4)
    with pytest.raises(UserError, match="needs positions on a grid of 2 axes"):
        merge(x, Context(torch.arange(6)[None]))
    with pytest.raises(UserError, match=r"cannot respect padding \(lengths\)"):
        merge(x, Context(torch.arange(6)[None], torch.tensor([6, 5]), grid=PositionGrid((2, 3))))
    with pytest.raises(UserError, match="cannot respect positions before the grid"):
        merge(x, on((1, 5), 1))
