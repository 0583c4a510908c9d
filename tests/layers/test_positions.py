"""Position tables: taken past their grid as another library does it, and read by position."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import ViTConfig
from transformers.models.vit.modeling_vit import ViTEmbeddings

from qkv.layers.positions import Learned, LearnedSinusoidal, Sinusoidal, build_positions, resample_grid
from qkv.ops.positions import sinusoid
from qkv.spec import parts as spec
from qkv.spec.errors import SpecError
from qkv.system.errors import UserError

PATCH, WIDTH = 4, 6


@given(old=st.integers(2, 6), height=st.integers(1, 9), width=st.integers(1, 9))
def test_a_resampled_grid_equals_the_interpolation_of_the_published_vit(old: int, height: int, width: int) -> None:
    config = ViTConfig(hidden_size=WIDTH, num_attention_heads=1, image_size=old * PATCH, patch_size=PATCH)
    theirs = ViTEmbeddings(config)
    images = torch.zeros(1, 1 + height * width, WIDTH)
    with torch.no_grad():
        expected = theirs.interpolate_pos_encoding(images, height * PATCH, width * PATCH)[0, 1:]
        ours = resample_grid(theirs.position_embeddings[0, 1:], (old, old), (height, width))
    assert ours.shape == (height * width, WIDTH)
    torch.testing.assert_close(ours, expected, rtol=0.0, atol=1e-6)


def test_a_grid_that_is_no_square_keeps_its_axes_apart() -> None:
    """A table whose value is the row (or the column) stays so in between."""
    rows = torch.arange(4.0)[:, None].expand(4, 8)
    table = torch.stack((rows, torch.arange(8.0).expand(4, 8)), -1).flatten(0, 1)
    seen = resample_grid(table, (4, 8), (8, 8)).unflatten(0, (8, 8))
    assert torch.allclose(seen[:, :, 1], torch.arange(8.0).expand(8, 8), atol=1e-5)
    assert torch.allclose(seen[2:6, :, 0], torch.tensor([0.75, 1.25, 1.75, 2.25])[:, None].expand(4, 8), atol=0.1)


def test_the_same_grid_is_the_same_table_and_gradients_pass() -> None:
    table = torch.randn(6, 5, requires_grad=True)
    assert resample_grid(table, (2, 3), (2, 3)) is table
    resample_grid(table, (2, 3), (4, 6)).sum().backward()
    assert table.grad is not None
    assert float(table.grad.sum()) == pytest.approx(24 * 5, rel=1e-4)


def test_a_table_of_another_grid_is_refused() -> None:
    with pytest.raises(UserError, match="the table has 7 positions, but a grid of 2 × 3 has 6"):
        resample_grid(torch.zeros(7, 4), (2, 3), (3, 3))


def test_a_learned_table_is_read_by_position() -> None:
    table = build_positions(spec.Learned(), 10, 4)
    assert isinstance(table, Learned)
    assert table.table.shape == (10, 4)
    table.table.data = torch.arange(40.0).view(10, 4)
    assert torch.equal(table(torch.tensor([[3, 0]])), table.table[[3, 0]][None])


def test_an_offset_leaves_the_first_rows_out() -> None:
    plain, moved = build_positions(spec.Learned(), 10, 4), build_positions(spec.Learned(offset=2), 10, 4)
    assert isinstance(plain, Learned)
    assert isinstance(moved, Learned)
    assert moved.table.shape == (12, 4)
    moved.table.data = torch.arange(48.0).view(12, 4)
    plain.table.data = moved.table.data[2:]
    positions = torch.tensor([[0, 3, 9]])
    assert torch.equal(moved(positions), plain(positions))
    moved(positions).sum().backward()
    assert moved.table.grad is not None
    assert moved.table.grad.any(-1).nonzero().flatten().tolist() == [2, 5, 11]


def test_sinusoids_have_no_parameters_and_know_no_end() -> None:
    module = build_positions(spec.Sinusoidal(base=50.0), 10, 4)
    assert isinstance(module, Sinusoidal)
    assert not list(module.parameters())
    assert torch.equal(module(torch.tensor([5000])), sinusoid(torch.tensor([5000]), 4, 50.0))


def test_learned_sinusoids_are_sinusoids_through_a_net_and_know_no_end() -> None:
    module = build_positions(spec.LearnedSinusoidal(base=50.0, hidden=7, activation="relu"), 10, 4)
    assert isinstance(module, LearnedSinusoidal)
    net = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.ReLU(), torch.nn.Linear(7, 4))
    net[0].load_state_dict(module.up.state_dict())
    net[2].load_state_dict(module.down.state_dict())
    positions = torch.tensor([[0, 1, 5000]])
    torch.testing.assert_close(module(positions), net(sinusoid(positions, 4, 50.0)))
    module(positions).pow(2).sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in module.parameters())


def test_no_positions_is_no_module() -> None:
    assert build_positions(spec.NoPositions(), 10, 4) is None


def test_a_position_has_a_place_on_each_axis() -> None:
    """Written row by row: position 7 of a grid of 3 × 4 is row 1, column 3."""
    apart, added = (build_positions(spec.Axial(shape=(3, 4), widths=widths), 99, 5) for widths in ((2, 3), ()))
    assert apart is not None
    assert added is not None
    for module in (apart, added):
        for table in module.tables:  # type: ignore[union-attr]
            torch.nn.init.normal_(table)
    rows, columns = apart.tables  # type: ignore[misc]
    assert [tuple(t.shape) for t in (rows, columns)] == [(3, 2), (4, 3)]
    assert torch.equal(
        apart(torch.tensor([[7, 0]])),
        torch.stack((torch.cat((rows[1], columns[3])), torch.cat((rows[0], columns[0]))))[None],
    )
    rows, columns = added.tables  # type: ignore[misc]
    assert torch.equal(added(torch.tensor([7])), (rows[1] + columns[3])[None])
    assert spec.Axial(shape=(3, 4)).limit(99) == 12


def test_axes_that_do_not_make_the_width_are_refused() -> None:
    (problem,) = spec.Axial(shape=(3, 4), widths=(2, 4)).width_problems(5)
    assert problem.sentence.startswith("the axes have 2 + 4 = 6 features, but positions have 5")
    for fields, sentence in (
        ({"shape": [3, 0]}, "0 given, but each axis needs at least 1"),
        ({"widths": [4]}, "1 widths are given for 2 axes"),
    ):
        with pytest.raises(SpecError, match=sentence):
            spec.Axial.parse(fields)
