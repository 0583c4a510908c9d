"""Growth with the number of positions: fits, ends, and the theory that branches declare."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.contracts.samples import BIDIRECTIONAL, EVERYTHING, SAMPLES

from qkv.costs.cost import cost
from qkv.costs.growth_tables import summary
from qkv.costs.measuring import growth
from qkv.costs.measuring.growth import GrowthCurve, GrowthPoint, crossover, fitted, growth_curve, theory
from qkv.spec.branches import Branch
from qkv.spec.mixers.continuous_memory import ContinuousMemory
from qkv.spec.mixers.gated_attention import MixedChunkAttention
from qkv.spec.mixers.hyper_attention import HyperAttention
from qkv.spec.mixers.linear_attention import LinearAttention
from qkv.spec.mixers.lsh_attention import LSHAttention
from qkv.spec.model import Model
from qkv.spec.models.growth import DENSE, LINEAR, NEAR, Growth

_QUICK = (
    LSHAttention(chunk_length=16),
    HyperAttention(block=16, samples=16, exact_up_to=16),
    LinearAttention(),
    MixedChunkAttention(chunk=64),
    ContinuousMemory(segment=64),
)
_ALL = (*_QUICK, *EVERYTHING, *BIDIRECTIONAL, *(part for parts in SAMPLES.values() for part in parts))
EACH = list({part.kind: part for part in reversed(_ALL)}.values())
"""One sample of every kind."""
NOT_COUNTED = ("gin", "propagation", "random_mixing")
"""Work that is no product of matrices of weights, which `qkv cost` counts otherwise."""


def model(branch: Branch | str, **changes: Any) -> Model:
    fields = {
        "width": 24,
        "frontend": {"kind": "text", "vocab_size": 8, "positions": "none"},
        "blocks": [{"branches": [branch]}],
        **changes,
    }
    return Model.parse(fields)


def curve(name: str, seconds: dict[int, float], memory: int = 10) -> GrowthCurve:
    points = tuple(GrowthPoint(n, s, memory * n, 4) for n, s in seconds.items())
    return GrowthCurve(name, DENSE, points, "")


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_a_power_law_gives_its_exponent(power: float) -> None:
    lengths = [256, 512, 1024, 2048, 4096]
    found = fitted(lengths, [3.0 * n**power for n in lengths])
    assert math.isclose(found.value, power, rel_tol=1e-9)
    assert found.half < 1e-6
    assert (found.first, found.last) == (256, 4096)


def test_the_interval_is_that_of_linear_regression() -> None:
    from scipy.stats import linregress, t

    lengths, values = [256, 512, 1024, 2048, 4096], [1.0, 2.3, 3.9, 8.8, 15.0]
    expected = linregress([math.log(n) for n in lengths], [math.log(v) for v in values])
    found = fitted(lengths, values)
    assert math.isclose(found.value, expected.slope, rel_tol=1e-9)
    assert math.isclose(found.half, expected.stderr * t.ppf(0.975, 3), rel_tol=1e-9)


def test_only_the_longest_factor_of_sixteen_is_fitted() -> None:
    """Short rows, whose time is constant, do not count; passes under 50 ms are refused."""
    short = {256: 0.05, 512: 0.05}
    found = curve("a", short | {1024 * 2**i: 0.06 * 4.0**i for i in range(5)}).exponent("seconds")
    assert found is not None
    assert math.isclose(found.value, 2.0, rel_tol=1e-9)
    assert (found.first, found.last) == (1024, 16384)
    assert curve("b", {1024 * 2**i: 0.01 * 4.0**i for i in range(5)}).exponent("seconds") is None
    assert curve("c", {1024 * 2**i: 1.0 for i in range(4)}).exponent("seconds") is None


def test_the_crossover_is_the_length_from_which_all_are_faster() -> None:
    exact = curve("exact", {256: 1.0, 512: 4.0, 1024: 16.0, 2048: 64.0})
    linear = curve("linear", {256: 0.5, 512: 5.0, 1024: 10.0, 2048: 20.0, 4096: 40.0})
    assert crossover(linear, exact) == 1024
    assert crossover(curve("slow", {256: 0.5, 2048: 70.0}), exact) is None
    _, rows = summary([exact, linear])
    assert [row[-2] for row in rows] == ["–", "1,024"]


def test_a_pass_that_would_take_too_long_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        growth, "_measured", lambda spec, length: GrowthPoint(length, (length / 256) ** 2, length, None)
    )
    found = growth_curve("exact", model("attention(2)"), longest=65536, limit=20.0)
    assert [point.length for point in found.points] == [256, 512, 1024]
    assert found.ended == "2,048 positions would take about 64 s"


def test_rows_get_longer_until_passes_can_be_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "_measured", lambda spec, length: GrowthPoint(length, length / 1e6, length, 8))
    found = growth_curve("linear", model("linear_attention(2)"), longest=4096)
    exponent = found.exponent("seconds")
    assert exponent is not None
    assert exponent.first == 65536


def test_a_length_that_the_model_refuses_ends_the_curve() -> None:
    found = growth_curve("mixer", model("gmlp(length=300, hidden=8)"), longest=512)
    assert [point.length for point in found.points] == [256]
    assert found.ended.startswith("refused at 512: ")


def test_measured_points_are_those_of_the_model() -> None:
    found = growth_curve("gru", model("gru"), longest=256, limit=0.0)
    assert found.points[0].state_bytes == 4 * 24
    assert found.points[0].peak_bytes > 256 * 24 * 4
    assert found.theory == Growth(1.0, 1.0, 1.0, 1.0)


def test_the_growth_of_a_stack_has_the_largest_exponents_and_the_shortest_path() -> None:
    mixed = model(
        "attention(2)", blocks=[{"branches": ["attention(2)", "feed_forward"]}, {"branches": ["token_shift"]}]
    )
    assert theory(mixed) == DENSE
    assert theory(model("token_shift")) == NEAR
    assert theory(model("attention(2)", segmentation="recurrent_memory(4)")) == Growth(1.0, 1.0, 1.0, 1.0)
    assert theory(model("attention(2)", segmentation="megabyte(4)")) == DENSE
    assert theory(model("attention(2, mask=causal & window(4))")) == NEAR


def needed_flops(part: Branch, length: int) -> int:
    own = part.changed(length=length) if part.longest_row else part.sized_for(length, None)
    return cost(model(own, context_length=length), 1, length).needed_flops


@pytest.mark.parametrize("part", EACH, ids=lambda part: part.kind)
def test_every_branch_declares_its_growth_and_the_counted_work_agrees(part: Branch) -> None:
    """FLOPs without masked scores, of rows so long that all else is small; sums over edges need no product."""
    declared = part.growth
    assert declared is not None, f"{part.kind} does not declare Branch.growth"
    if part.kind in NOT_COUNTED or part.reads_memory:
        return
    flops = [needed_flops(part, length) for length in (1 << 10, 1 << 11)]
    assert abs(math.log2(flops[1] / flops[0]) - declared.time) < 0.25


def test_a_linear_mixer_reaches_all_positions_in_one_step() -> None:
    assert Growth.of([LINEAR, NEAR]).path == 0.0
    assert Growth.of([NEAR]).path == 1.0
