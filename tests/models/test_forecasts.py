"""Forms of a forecast: losses and quantiles against loops, torch and scipy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

from qkv.models.build import build
from qkv.models.heads.forecasts import LEVELS, build_forecast, crps, pinball
from qkv.models.heads.head import build_head
from qkv.spec.errors import SpecError
from qkv.spec.heads import ForecastHead
from qkv.spec.model import Model, Text
from qkv.spec.models.forecasts import Forecast, Gaussian, Point, Quantiles, StudentT
from qkv.system.errors import UserError


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_pinball_and_crps_are_those_of_a_loop() -> None:
    levels, quantiles, y = (0.1, 0.4, 0.9), drawn(4, 3), drawn(4)
    for i in range(4):
        losses = [
            2 * (t * (y[i] - q) if y[i] >= q else (1 - t) * (q - y[i]))
            for t, q in zip(levels, quantiles[i], strict=True)
        ]
        torch.testing.assert_close(pinball(quantiles, y, levels)[i], torch.stack(losses))
        shares = (0.25, 0.4, 0.35)  # of (0, 1), nearest to each level
        total = sum(share * loss for share, loss in zip(shares, losses, strict=True))
        torch.testing.assert_close(crps(quantiles, y, levels)[i], total)


def test_the_crps_of_many_quantiles_is_that_of_the_distribution() -> None:
    levels = tuple((i + 0.5) / 400 for i in range(400))
    quantiles = torch.tensor(scipy.stats.norm.ppf(levels))[None]
    for y in (-1.3, 0.0, 2.0):
        exact = y * (2 * scipy.stats.norm.cdf(y) - 1) + 2 * scipy.stats.norm.pdf(y) - 1 / math.sqrt(math.pi)
        assert float(crps(quantiles, torch.tensor([y], dtype=torch.float64), levels)) == pytest.approx(exact, abs=2e-3)


def restored(part: Forecast, raw: torch.Tensor) -> torch.Tensor:
    ones = torch.ones(raw.shape[:-1], dtype=raw.dtype)
    return build_forecast(part).restored(raw, 0 * ones + 1.5, 2 * ones)


def test_the_gaussian_loss_is_its_density() -> None:
    y, outputs = drawn(5), restored(Gaussian(), drawn(5, 2))
    expected = -torch.distributions.Normal(outputs[:, 0], outputs[:, 1]).log_prob(y)
    torch.testing.assert_close(build_forecast(Gaussian()).loss(outputs, y), expected)
    raw = drawn(5, 2)
    torch.testing.assert_close(outputs[:, 0], 1.5 + 2 * raw[:, 0])
    torch.testing.assert_close(outputs[:, 1], 2 * ((1 + raw[:, 1].exp()).log() + 1e-4))


def test_the_student_t_loss_is_its_density() -> None:
    y, outputs = drawn(5), restored(StudentT(), drawn(5, 3))
    location, scale, nu = outputs.unbind(-1)
    expected = -torch.distributions.StudentT(nu, location, scale).log_prob(y)
    torch.testing.assert_close(build_forecast(StudentT()).loss(outputs, y), expected)


def test_quantiles_of_distributions_are_those_of_scipy() -> None:
    outputs = torch.tensor([[1.0, 2.0, 2.05], [1.0, 2.0, 8.0]], dtype=torch.float64)
    form = build_forecast(StudentT())
    for row, nu in zip(form.quantiles(outputs), (2.05, 8.0), strict=True):
        np.testing.assert_allclose(row, scipy.stats.t.ppf(LEVELS, nu, 1, 2), atol=0.04)
    normal = build_forecast(Gaussian()).quantiles(outputs[:1, :2])[0]
    np.testing.assert_allclose(normal, scipy.stats.norm.ppf(LEVELS, 1, 2), rtol=1e-6)


def test_quantiles_are_sorted_and_the_median_is_the_point() -> None:
    form = build_forecast(Quantiles(levels=(0.2, 0.5, 0.8)))
    outputs = torch.tensor([[3.0, 1.0, 2.0]])
    assert form.quantiles(outputs).tolist() == [[1, 2, 3]]
    assert form.point(outputs).tolist() == [2]
    with pytest.raises(SpecError, match="in rising order"):
        Quantiles.parse({"levels": [0.5, 0.2]})


def test_missing_targets_have_no_loss_and_no_gradient() -> None:
    head: Any = build_head(ForecastHead(horizon=2, form=Gaussian()), 4, None)
    outputs = torch.randn(1, 1, 2, 2, requires_grad=True)
    head.loss(outputs, torch.tensor([[[float("nan"), 1.0]]])).backward()
    assert outputs.grad is not None
    assert outputs.grad[0, 0, 0].tolist() == [0, 0]
    assert outputs.grad.isfinite().all()


@pytest.mark.parametrize("over", ["flatten", "mean", "channels", "steps"])
def test_the_head_maps_the_vectors_that_it_says(over: str) -> None:
    part = ForecastHead.parse({"over": over, "horizon": 3, "channels": 2, "positions": 3, "form": "gaussian"})
    head: Any = build_head(part, 4, None)
    torch.nn.init.normal_(head.output.weight)
    x = torch.randn(5, 3, 4)
    out, w, b = head(x, None), head.output.weight, head.output.bias
    read = {"flatten": x[1].flatten(), "mean": x[1].mean(0), "channels": x[1, 2], "steps": x[1, 0]}[over]
    expected = w @ read + b
    seen = out[1, 2] if over == "channels" else out[1, :, 0] if over == "steps" else out[1]
    assert out.shape == (5, 3 if over == "channels" else 2, 3, 2)
    torch.testing.assert_close(seen.flatten(), expected)


def test_joined_positions_have_to_be_known_and_whole() -> None:
    with pytest.raises(UserError, match=r"model\.head\.positions is unknown"):
        build(Model(head=ForecastHead(over="flatten"), frontend=Text(vocab_size=4)))
    head = build_head(ForecastHead(over="flatten", positions=3), 4, None)
    with pytest.raises(UserError, match="the head reads 3 positions, but the input has 2"):
        head(torch.zeros(1, 2, 4), None)


def test_a_point_is_judged_by_the_loss_of_its_form() -> None:
    outputs, y = torch.tensor([[2.0]]), torch.tensor([5.0])
    assert build_forecast(Point()).loss(outputs, y).tolist() == [9]
    assert build_forecast(Point(loss="absolute")).loss(outputs, y).tolist() == [3]
