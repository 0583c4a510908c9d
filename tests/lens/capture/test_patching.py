"""Gradients at points, patching grids and path patching, against the same computation by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.lens.capture.models import IDS, LENGTHS, OTHER, RAGGED, built
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.layers.context import Context
from qkv.layers.signal import Signal
from qkv.lens.capture.edits import replace
from qkv.lens.capture.gradients import gradients
from qkv.lens.capture.grids import patching_grid
from qkv.lens.capture.metrics import logit_difference, task_metric
from qkv.lens.capture.paths import patch_path
from qkv.lens.capture.records import rows_of
from qkv.lens.capture.regions import Region
from qkv.lens.record import record
from qkv.models.transformer import Transformer
from qkv.spec.tasks import NextToken
from qkv.system.errors import UserError
from qkv.tasks.text.next_token import NextTokenTask

ANSWERS = [[1, 2], [3, 4], [5, 6]]


def difference(logits: Tensor) -> Tensor:
    """Logit difference at the last position of each row, by a loop."""
    ends = [logits[row, int(LENGTHS[row]) - 1] for row in range(3)]
    return torch.stack([end[right] - end[wrong] for end, (right, wrong) in zip(ends, ANSWERS, strict=True)])


@pytest.mark.parametrize("point", ["head_outputs", "weights", "scores", "activation", "residual_after"])
def test_a_gradient_is_that_of_finite_differences(point: str) -> None:
    model, metric = built(), logit_difference(ANSWERS)
    path = f"blocks.0.branches.{int(point == 'activation')}.{point}"
    values, slopes = gradients(model, lambda: metric(model, RAGGED), path)
    value, slope = values[path], slopes[path]
    assert all(parameter.grad is None for parameter in model.parameters())
    place = torch.where(torch.isfinite(value), slope.abs(), 0).flatten().argmax()
    bump = torch.zeros(value.numel()).double()
    bump[place] = 1e-5
    with torch.no_grad():
        up, down = (
            difference(model(RAGGED, tap=replace(path, value + sign * bump.view_as(value)))[0]).sum()
            for sign in (1, -1)
        )
    torch.testing.assert_close((up - down) / 2e-5, slope.flatten()[place], rtol=1e-5, atol=1e-7)
    for row, (part, end) in enumerate(zip(rows_of(slopes, path), LENGTHS, strict=True)):
        assert part.shape[-2 if point != "residual_after" else 0] == end, row


def test_a_number_without_gradient_is_refused() -> None:
    model = built()
    with pytest.raises(UserError, match="has no gradient at weights"):
        gradients(model, lambda: torch.ones(3), "weights")


@torch.no_grad()
def patched_by_hand(model: Transformer, path: str, index: Any) -> Tensor:
    clean = record(model, RAGGED, path)[path]

    def change(value: Tensor) -> Tensor:
        value = value.clone()
        value[index] = clean[index]
        return value

    return difference(model(OTHER, tap=replace(path, change))[0])


def ratio(patched: Tensor, clean: Tensor, corrupted: Tensor, rows: list[int]) -> float:
    return float(sum(patched[i] - corrupted[i] for i in rows) / sum(clean[i] - corrupted[i] for i in rows))


@torch.no_grad()
def test_a_grid_over_positions_is_a_loop() -> None:
    model = built()
    grid = patching_grid(model, RAGGED, OTHER, logit_difference(ANSWERS))
    assert grid.points == ("blocks.0.branches.0.residual_before", "blocks.1.branches.0.residual_before")
    clean, corrupted = difference(model(RAGGED)[0]), difference(model(OTHER)[0])
    torch.testing.assert_close((grid.clean, grid.corrupted), (clean, corrupted))
    for layer, path in enumerate(grid.points):
        for place in range(6):
            rows = [row for row in range(3) if place < LENGTHS[row]]
            patched = patched_by_hand(model, path, (slice(None), place))
            assert grid.values[layer, place] == pytest.approx(ratio(patched, clean, corrupted, rows))
            assert grid.patched[layer, place].isnan().tolist() == [place >= end for end in LENGTHS]
    assert (grid.low <= grid.values + 1e-9).all()
    assert (grid.values <= grid.high + 1e-9).all()


@torch.no_grad()
def test_a_grid_over_heads_is_a_loop_over_lists_of_inputs_too() -> None:
    model = built()
    grid = patching_grid(model, RAGGED, OTHER, logit_difference(ANSWERS), "heads")
    clean, corrupted = difference(model(RAGGED)[0]), difference(model(OTHER)[0])
    for layer, path in enumerate(grid.points):
        for head in range(4):
            patched = patched_by_hand(model, path, (slice(None), head))
            assert grid.values[layer, head] == pytest.approx(ratio(patched, clean, corrupted, [0, 1, 2]))

    def rows(signal: Signal) -> list[Batch]:
        return [Batch.of(Signal(ids[:4][None]), ids[1:5][None]) for ids in signal.values]

    task = NextTokenTask(NextToken())
    several = patching_grid(model, rows(RAGGED), rows(OTHER), task_metric(task), "heads", samples=50)
    assert several.patched.shape == (2, 4, 3)
    loss = torch.nn.functional.cross_entropy(model(IDS[1:2, :4])[0][0], IDS[1, 1:5])
    torch.testing.assert_close(several.clean[1], loss)
    single = patching_grid(model, rows(RAGGED)[1], rows(OTHER)[1], task_metric(task), "heads", samples=50)
    torch.testing.assert_close(several.patched[..., 1], single.patched[..., 0])
    torch.testing.assert_close(single.low, single.values)


@torch.no_grad()
def test_bootstrap_intervals_hold_what_samples_of_the_pairs_give() -> None:
    model = built()
    grid = patching_grid(model, RAGGED, OTHER, logit_difference(ANSWERS), "heads", level=1.0, samples=400)
    for head in range(4):
        changes, wholes = grid.patched[1, head] - grid.corrupted, grid.clean - grid.corrupted
        drawn = [
            float(changes[[i, j, k]].sum() / wholes[[i, j, k]].sum())
            for i in range(3)
            for j in range(3)
            for k in range(3)
        ]
        assert (float(grid.low[1, head]), float(grid.high[1, head])) == pytest.approx((min(drawn), max(drawn)))


@pytest.mark.parametrize("point", ["q", "v", "input"])
@torch.no_grad()
def test_a_patched_path_is_the_one_by_hand(point: str) -> None:
    """The sender's change of the stream is added before the receiver's norm, and nothing between them reads it."""
    model, metric, head = built(), logit_difference(ANSWERS), 2
    sender, path = "blocks.0.branches.0.head_outputs", f"blocks.1.branches.0.{point}"
    receiver = Region(path) if point == "input" else Region(path, heads=[1])
    result = patch_path(model, RAGGED, OTHER, Region(sender, heads=[head]), receiver, metric)
    base, other = (record(model, signal, "head_outputs", "residual_before", point) for signal in (RAGGED, OTHER))
    change = torch.zeros_like(base[sender])
    change[:, head] = other[sender][:, head] - base[sender][:, head]
    slots: list[Any] = [block.branches[0] for block in model.blocks]  # type: ignore[union-attr]
    added = change.transpose(1, 2).flatten(2) @ slots[0].body.output.weight.T
    read = slots[1].norm(base["blocks.1.branches.0.residual_before"] + added, Context(torch.arange(6)[None]))
    if point == "input":
        new = read
    else:
        first = 0 if point == "q" else 16 + 8
        features = slice(first + 4, first + 8)  # head 1 of four features
        new = base[path].clone()
        new[:, 1] = (read @ slots[1].body.qkv.weight.T + slots[1].body.qkv.bias)[..., features]
    expected = difference(model(RAGGED, tap=replace(path, new))[0])
    torch.testing.assert_close(result, expected)
    assert not torch.allclose(result, metric(model, RAGGED))


@torch.no_grad()
def test_paths_to_all_outputs_add_up_in_a_model_without_norms() -> None:
    model = built(norm="none", blocks=[{"branches": ["attention(4)"], "norm": "none"}])
    total = torch.zeros(3).double()
    base, other = (logit_difference(ANSWERS)(model, signal) for signal in (RAGGED, OTHER))
    for sender in ("frontend.output", "blocks.0.branches.0.output", "blocks.1.branches.0.output"):
        total += patch_path(model, RAGGED, OTHER, Region(sender), Region("head.output"), logit_difference(ANSWERS))
    torch.testing.assert_close(total - 3 * base, other - base)


REFUSED = {
    "differ in length": lambda m: patching_grid(m, IDS[:, :5], IDS, logit_difference(ANSWERS)),
    "equals that of the corrupted": lambda m: patching_grid(m, IDS, IDS, logit_difference(ANSWERS)),
    "answers are given for 3 rows": lambda m: patching_grid(m, IDS[:2], IDS[:2], logit_difference(ANSWERS)),
    "positions cannot be selected": lambda m: patching_grid(
        built(blocks=[{"branches": ["token_mlp"]}], head="classification(3)"),
        IDS,
        IDS,
        logit_difference(ANSWERS),
        points=["activation"],
    ),
    "the sender of a path is one point": lambda m: patch_path(
        m, IDS, IDS, Region("output"), Region("head.output"), logit_difference(ANSWERS)
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_patched_is_refused(message: str) -> None:
    with pytest.raises(UserError, match=message):
        REFUSED[message](built())
