"""Patches of windows of series, against loops in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.frontends.frontend import build_frontend
from qkv.layers.signal import Signal
from qkv.layers.times import TimedSignal
from qkv.spec.errors import SpecError
from qkv.spec.model import Stack
from qkv.spec.parts import NoPositions
from qkv.spec.signals.series import SeriesPatches, SeriesSteps
from qkv.system.errors import UserError

WIDTH = 6


def built(steps: int | None = 10, features: int = 2, covariates: int = 0, **fields: Any) -> Any:
    part = SeriesPatches.parse({"patch": 4, "stride": 3, "positions": "none", **fields})
    part = part.changed(features=features, covariates=covariates)
    part = part if steps is None else part.of_steps(steps)
    frontend = build_frontend(Stack(frontend=part, context_length=16), WIDTH).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in frontend.parameters():
        parameter.data.normal_(generator=generator)
    return frontend.eval()


def window(steps: int = 10, features: int = 2, rows: int = 3) -> Tensor:
    return 5 + 3 * torch.randn(rows, steps, features, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def standardised(values: list[float]) -> list[float]:
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values) + 1e-5)
    return [(v - mean) / deviation for v in values]


ENDS = [{"pad_end": True}, {"pad_end": False}, {"pad_end": False, "align": "end"}]


@pytest.mark.parametrize("ends", ENDS)
def test_a_patch_holds_the_standardised_steps_of_all_channels(ends: dict[str, Any]) -> None:
    frontend, given = built(12, channels="mixed", **ends), window(12)
    x, context = frontend.embed(Signal(given))
    skipped = 2 if "align" in ends else 0  # 12 = 2 + 4 + 3 + 3
    for row in range(3):
        columns = [standardised(given[row, :, c].tolist())[skipped:] for c in range(2)]
        columns = [column + column[-1:] * 3 * ends["pad_end"] for column in columns]
        starts = range(0, len(columns[0]) - 3, 3)
        assert x.shape[1] == len(starts) == frontend.part.num_positions
        for n, start in enumerate(starts):
            read = torch.tensor([v for column in columns for v in column[start : start + 4]], dtype=torch.float64)
            torch.testing.assert_close(x[row, n], frontend.map.weight @ read + frontend.map.bias)
    assert context.lengths is None


def test_a_position_holds_all_steps_of_a_channel_or_a_covariate_if_inverted() -> None:
    frontend, given = built(channels="inverted", covariates=1), window(features=3)
    x, _ = frontend.embed(Signal(given))
    assert x.shape == (3, 3, WIDTH)
    for n in range(3):
        steps = given[1, :, n].tolist()
        read = torch.tensor(steps if n == 2 else standardised(steps), dtype=torch.float64)
        torch.testing.assert_close(x[1, n], frontend.map.weight @ read + frontend.map.bias)


@pytest.mark.parametrize("how", ["window", "last", "none"])
@pytest.mark.parametrize("affine", [True, False])
def test_the_level_undoes_the_normalisation(how: str, affine: bool) -> None:
    if how == "none" and affine:
        with pytest.raises(SpecError, match="there is no normalisation to scale"):
            built(normalise=how, affine=affine)
        return
    frontend, given = built(channels="mixed", normalise=how, affine=affine), window()
    shift, scale = frontend.level(Signal(given))
    for c in range(2):
        values = given[0, :, c]
        mean, deviation = {
            "window": (values.mean(), (values.var(correction=0) + 1e-5).sqrt()),
            "last": (values[-1], torch.tensor(1.0, dtype=torch.float64)),
            "none": (torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)),
        }[how]
        normal = (values - mean) / deviation
        if affine:
            normal = normal * (frontend.gain[c] + 1e-5) + frontend.offset[c]
        torch.testing.assert_close(normal * scale[0, c] + shift[0, c], values)


def test_a_forecast_shifts_and_scales_with_the_window() -> None:
    frontend, given = built(features=1, channels="apart"), window(features=1)
    x, _ = frontend.embed(Signal(given))
    moved, _ = frontend.embed(Signal(given * 7 - 3))
    torch.testing.assert_close(x, moved, rtol=1e-5, atol=1e-5)


def test_times_are_read_beside_the_values_they_belong_to() -> None:
    frontend, given = built(features=1, patch=1, stride=1, pad_end=False, frequencies=2), window(features=1)
    times = torch.rand(3, 10, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    x, _ = frontend.embed(TimedSignal(given, times=times))
    for n in (0, 7):
        time = float(times[2, n])
        waves = [math.sin(w * time + p) for w, p in zip(frontend.rates.tolist(), frontend.phases.tolist(), strict=True)]
        value = standardised(given[2, :, 0].tolist())[n]
        read = torch.tensor([value, time, *waves, *(value * wave for wave in waves)], dtype=torch.float64)
        torch.testing.assert_close(x[2, n], frontend.map.weight @ read + frontend.map.bias)
    with pytest.raises(UserError, match="the front end reads the times of the values, and none are given"):
        frontend.embed(Signal(given))
    with pytest.raises(UserError, match=r"the front end reads none; set frontend\.frequencies"):
        built().embed(TimedSignal(window(features=1), times=times))


@pytest.mark.parametrize("how", ["window", "last", "none"])
@pytest.mark.parametrize("ends", ENDS)
def test_a_padded_row_is_read_as_alone(how: str, ends: dict[str, Any]) -> None:
    frontend, given = built(None, channels="mixed", normalise=how, **ends), window(12)
    x, context = frontend.embed(Signal(given, lengths=torch.tensor([12, 8, 2])))
    assert context.lengths is not None
    assert context.lengths.tolist() == [count + ends["pad_end"] for count in (3, 2, 1)]
    for row, length in enumerate((12, 8, 2)):
        alone, _ = frontend.embed(Signal(given[row : row + 1, :length]))
        torch.testing.assert_close(x[row, : alone.shape[1]], alone[0])
        assert alone.shape[1] == context.lengths[row]


def test_future_steps_are_their_covariates_and_a_learned_vector() -> None:
    part = SeriesSteps(covariates=2, features=1, positions=NoPositions())
    frontend: Any = build_frontend(Stack(frontend=part, context_length=8), WIDTH)
    frontend.initialise(0.1)
    given = torch.randn(2, 5, 2)
    x, _ = frontend.embed(Signal(given))
    expected = frontend.vector + given[1, 3] @ frontend.map.weight.T + frontend.map.bias
    torch.testing.assert_close(x[1, 3], expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.zeros(2, 10), "and the model reads numbers"),
        (torch.zeros(2, 10, 3), "and the model reads numbers"),
        (torch.zeros(2, 10, 1, dtype=torch.long), "the type int64"),
        (torch.zeros(2, 3, 1), "a window of 3 steps is shorter than a patch of 4"),
    ],
)
def test_other_shapes_are_refused(values: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        built(features=1).embed(Signal(values))


def test_sizes_that_differ_from_those_of_the_data_are_refused() -> None:
    with pytest.raises(SpecError, match="9 given, but the data has 10"):
        SeriesPatches(patch=4, steps=9).of_steps(10)
    with pytest.raises(SpecError, match="a patch of 16 steps is longer than a window of 10"):
        SeriesPatches().of_steps(10)
    with pytest.raises(SpecError, match="has no single time"):
        SeriesPatches.parse({"channels": "inverted", "frequencies": 1})
