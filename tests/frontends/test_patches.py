"""Images as sequences of patches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import qkv
from qkv.frontends.patches import PatchFrontend
from qkv.layers.signal import Signal
from qkv.models.build import build
from qkv.spec.errors import SpecError
from qkv.spec.model import Model, Stack
from qkv.spec.parts import LayerNorm, Learned, LearnedGrid, NoPositions
from qkv.spec.signals.images import Images, Patches
from qkv.system.errors import UserError

PIXELS = torch.randn(2, 3, 9, 12, generator=torch.Generator().manual_seed(0))


def built(**fields: Any) -> PatchFrontend:
    part = Patches(**{"patch": 4, "height": 9, "width": 12, "channels": 3, **fields})
    frontend = PatchFrontend(part, Stack(frontend=part), 16)
    generator = torch.Generator().manual_seed(1)
    for parameter in frontend.parameters():
        parameter.data.normal_(generator=generator)
    return frontend.eval()


def test_a_position_is_a_linear_map_of_its_patch_in_row_major_order() -> None:
    frontend = built(positions=NoPositions())
    x, context = frontend.embed(Signal(PIXELS))
    assert x.shape == (2, 6, 16)
    assert context.grid is not None
    assert context.grid.sizes == (2, 3)
    for place in range(6):
        row, column = divmod(place, 3)
        patch = PIXELS[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].flatten(1)
        torch.testing.assert_close(x[:, place], patch @ frontend.map.weight.flatten(1).T + frontend.map.bias)


def test_a_class_token_is_the_first_position_and_takes_the_first_row_of_the_table() -> None:
    plain, marked = built(positions=NoPositions()), built(positions=Learned(), class_token=True)
    marked.map.load_state_dict(plain.map.state_dict())
    assert marked.positions is not None
    assert marked.first is not None
    table = marked.positions(torch.arange(7))
    x, context = marked.embed(Signal(PIXELS))
    torch.testing.assert_close(x[:, 1:], plain.embed(Signal(PIXELS))[0] + table[1:])
    torch.testing.assert_close(x[:, 0], (marked.first + table[0]).expand(2, -1))
    places = [[0, 0], *([row, column] for row in (1, 2) for column in (1, 2, 3))]
    assert context.coordinates[0].tolist() == places


def test_registers_stand_between_class_token_and_patches_without_a_position_vector() -> None:
    plain, ours = (built(class_token=True, norm=LayerNorm(), registers=count) for count in (0, 2))
    ours.load_state_dict({**ours.state_dict(), **plain.state_dict()})
    assert ours.registers is not None
    x, context = ours.embed(Signal(PIXELS))
    wanted = plain.embed(Signal(PIXELS))[0]
    torch.testing.assert_close(x[:, [0, *range(3, 9)]], wanted)
    normed = torch.nn.functional.layer_norm(ours.registers, (16,), ours.norm.weight, ours.norm.bias)
    torch.testing.assert_close(x[:, 1:3], normed.expand(2, -1, -1))
    assert context.coordinates[0].tolist()[:4] == [[0, 0], [0, 0], [0, 0], [1, 1]]
    larger = ours.part.resized(18, 12)
    assert (larger.num_positions, larger.positions) == (15, LearnedGrid(shape=(2, 3), leading=1))
    with pytest.raises(SpecError, match="3 given, but 1 positions with a vector precede the patches"):
        Patches.parse({"class_token": True, "registers": 2, "positions": LearnedGrid(shape=(2, 3), leading=3)})


def test_a_pixel_may_be_a_position() -> None:
    assert built(patch=1).embed(Signal(PIXELS))[0].shape == (2, 108, 16)


def test_each_stage_of_a_stem_halves_the_image() -> None:
    frontend = built(stem=(5, 7), patch=1).double()
    assert frontend.part.grid == (3, 3)
    x, _ = frontend.embed(Signal(PIXELS.double()))
    assert x.shape == (2, 9, 16)
    alone, _ = frontend.embed(Signal(PIXELS[1:].double()))
    torch.testing.assert_close(alone[0], x[1])


def test_the_sizes_are_those_of_the_processor() -> None:
    processor = Images(height=9, width=12, channels=3, mean=(0, 0, 0), deviation=(1, 1, 1))
    assert Patches().fitted(processor).grid == (2, 3)
    with pytest.raises(SpecError, match="16 given, but the processor has 9"):
        Patches(height=16).fitted(processor)


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (torch.zeros(2, 9, 12), r"images have the shape \(2, 9, 12\), and the model reads .* \(B, 3, 9, 12\)"),
        (torch.zeros(2, 3, 12, 9), r"images have the shape \(2, 3, 12, 9\)"),
        (torch.zeros(2, 3, 9, 12, dtype=torch.uint8), "images are torch.uint8"),
    ],
)
def test_other_values_are_refused(pixels: torch.Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        built().embed(Signal(pixels))


def test_a_patch_larger_than_the_image_and_unknown_sizes_are_refused() -> None:
    with pytest.raises(SpecError, match="patches of 16 pixels are larger than images of 9 × 12"):
        Patches.parse({"patch": 16, "height": 9, "width": 12})
    with pytest.raises(UserError, match="height, width and channels are not set"):
        build(Model(frontend=Patches(), head="classification(2)"), 0)  # type: ignore[arg-type]


def test_a_model_of_images_reads_them_whole() -> None:
    frontend = {"kind": "patches", "patch": 4, "height": 8, "width": 8, "channels": 1}
    for blocks in ([], [{"branches": ["attention(2)"]}]):
        model = Model.parse({"width": 8, "frontend": frontend, "blocks": blocks, "head": "classification(2)"})
        assert not model.decodes
        assert qkv.cost(model, 2).forward_flops > 0
