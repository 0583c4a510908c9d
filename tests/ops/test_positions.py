"""Sinusoids, rotations and slopes against their papers and against another library."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.compare import assert_same
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from qkv.layers.positions import rope_frequencies
from qkv.ops.positions import (
    alibi_slopes,
    closed_sinusoid,
    inverse_frequencies,
    ntk_base,
    rotate,
    rotation,
    sinusoid,
    sinusoid_2d,
    sinusoid_halves,
)
from qkv.spec.parts import LinearScaling, Llama3Scaling, NTKScaling, ProportionalScaling, Rope, YarnScaling


@pytest.mark.parametrize("width", [1, 2, 6, 7, 16])
def test_a_sinusoid_is_its_formula(width: int) -> None:
    seen = sinusoid(torch.tensor([[0, 1], [5, 37]]), width, base=100.0)
    assert seen.shape == (2, 2, width)
    for p, row in zip((0, 1, 5, 37), seen.flatten(0, 1), strict=True):
        for feature, value in enumerate(row.tolist()):
            angle = p / 100.0 ** (2 * (feature // 2) / width)
            assert value == pytest.approx(math.cos(angle) if feature % 2 else math.sin(angle), abs=1e-5)


@pytest.mark.parametrize("width", [1, 2, 6, 7, 16])
def test_sines_in_the_first_half_of_the_features(width: int) -> None:
    for p, row in zip((0, 5, 37), sinusoid_halves(torch.tensor([0, 5, 37]), width, 100.0).tolist(), strict=True):
        sines = -(-width // 2)
        for feature, value in enumerate(row):
            angle = p / 100.0 ** (2 * (feature % sines) / width)
            assert value == pytest.approx(math.sin(angle) if feature < sines else math.cos(angle), abs=1e-5)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("width", [1, 2, 3, 6, 7, 16])
def test_closed_frequencies_end_with_one_over_the_base(width: int, halves: bool) -> None:
    half, places = width // 2, (0, 5, 37)
    seen = closed_sinusoid(torch.tensor(places), width, 100.0, halves, torch.float32)
    assert seen.shape == (3, width)
    for p, row in zip(places, seen.tolist(), strict=True):
        angles = [p * 100.0 ** (-i / max(half - 1, 1)) for i in range(half)]
        pairs = [(math.sin(angle), math.cos(angle)) for angle in angles]
        expected = [pair[k] for k in (0, 1) for pair in pairs] if halves else [x for pair in pairs for x in pair]
        assert row == pytest.approx([*expected, *[0.0] * (width % 2)], abs=1e-5)


def test_a_step_of_k_positions_is_one_linear_map_that_does_not_depend_on_the_position() -> None:
    """PE(p + k) = T_k PE(p): each pair of features is turned by its own angle, k / base^(2i/D)."""
    width, k = 8, 5
    step = torch.zeros(width, width)
    for i in range(width // 2):
        angle = k / 10000.0 ** (2 * i / width)
        step[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor(
            [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
        )
    positions = torch.arange(300)
    assert_same(sinusoid(positions, width) @ step.t(), sinusoid(positions + k, width), 1e-4)


def test_in_two_dimensions_half_of_the_width_belongs_to_each_axis() -> None:
    rows, columns = (grid.flatten() for grid in torch.meshgrid(torch.arange(3), torch.arange(5), indexing="ij"))
    seen = sinusoid_2d(rows, columns, 12)
    assert seen.shape == (15, 12)
    for n, (row, column) in enumerate((r, c) for r in range(3) for c in range(5)):
        assert torch.equal(seen[n, :6], sinusoid(torch.tensor(row), 6))
        assert torch.equal(seen[n, 6:], sinusoid(torch.tensor(column), 6))
    assert sinusoid_2d(rows, columns, 7).shape == (15, 7)
    assert len(set(map(tuple, seen.tolist()))) == 15


def test_a_step_in_two_dimensions_is_one_linear_map_too() -> None:
    step = torch.block_diag(
        *(turn(3 / 10000.0 ** (i / 2)) for i in range(2)), *(turn(2 / 10000.0 ** (i / 2)) for i in range(2))
    )
    rows, columns = torch.arange(20), torch.arange(20).flip(0)
    assert_same(sinusoid_2d(rows, columns, 8) @ step.t(), sinusoid_2d(rows + 3, columns + 2, 8), 1e-5)


def turn(angle: float) -> torch.Tensor:
    return torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])


@pytest.mark.parametrize("width", [2, 8, 64])
def test_rotated_dot_products_depend_on_the_offset_alone(width: int) -> None:
    q, k = (torch.randn(width, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in (0, 1))
    frequencies = inverse_frequencies(width, 10000.0)

    def at(i: int, j: int) -> float:
        turned = [rotate(x, *rotation(torch.tensor(p), frequencies)) for x, p in ((q, i), (k, j))]
        return float(turned[0] @ turned[1])

    for offset in (-4, 0, 1, 33):
        expected = at(offset + 4, 4)
        assert [at(j + offset, j) for j in (10, 57, 200)] == pytest.approx([expected] * 3, abs=1e-4)
    assert at(7, 7) == pytest.approx(float(q @ k), abs=1e-5)
    assert abs(at(0, 3) - at(3, 0)) > 1e-3, "the direction of an offset must count"


def test_rotation_keeps_lengths() -> None:
    x = torch.randn(5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    turned = rotate(x, *rotation(torch.arange(5), inverse_frequencies(16, 500.0)))
    assert_same(turned.norm(dim=-1), x.norm(dim=-1), 1e-6)
    assert torch.equal(turned[0], x[0])
    assert not torch.allclose(turned[1:], x[1:], atol=0.1)


@pytest.mark.parametrize("fraction", [0.25, 0.5])
def test_a_partial_rotation_leaves_the_rest_of_the_head_alone(fraction: float) -> None:
    x = torch.randn(2, 3, 7, 16, generator=torch.Generator().manual_seed(1))
    part = Rope(fraction=fraction)
    turned = part.rotated(16)
    assert turned == int(16 * fraction)
    cos, sin = rotation(torch.arange(7), *rope_frequencies(part, turned))
    seen = rotate(x, cos, sin)
    assert torch.equal(seen[..., turned:], x[..., turned:])
    assert torch.equal(seen[..., :turned], rotate(x[..., :turned], cos, sin))


def config(kind: str, head_dim: int, base: float, **parameters: Any) -> LlamaConfig:
    parameters = {"rope_type": kind, "rope_theta": base, **parameters}
    return LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=2048,
        rope_parameters=parameters,
    )


widths, bases, factors = (
    st.sampled_from([4, 16, 64, 128]),
    st.sampled_from([500.0, 10000.0, 500000.0]),
    st.sampled_from([1.5, 4.0, 32.0]),
)


@given(head_dim=widths, base=bases)
def test_frequencies_equal_those_of_transformers(head_dim: int, base: float) -> None:
    theirs, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config("default", head_dim, base))
    ours, magnitude = rope_frequencies(Rope(base=base), head_dim)
    assert_close(ours, theirs)
    assert magnitude == factor


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Digit for digit in fp32, relative to each frequency: the slow ones count as much as the fast."""
    torch.testing.assert_close(ours, theirs, rtol=3e-6, atol=0.0)


@given(head_dim=widths, base=bases, factor=factors, fraction=st.sampled_from([1.0, 0.5]))
def test_linear_scaling_equals_that_of_transformers(head_dim: int, base: float, factor: float, fraction: float) -> None:
    theirs, expected = ROPE_INIT_FUNCTIONS["linear"](
        config("linear", head_dim, base, factor=factor, partial_rotary_factor=fraction)
    )
    part = Rope(base=base, fraction=fraction, scaling=LinearScaling(factor=factor))
    ours, magnitude = rope_frequencies(part, part.rotated(head_dim))
    assert_close(ours, theirs)
    assert magnitude == expected


@given(head_dim=widths, base=bases, factor=factors)
def test_ntk_scaling_equals_the_dynamic_one_of_transformers_at_the_length_where_both_stretch_alike(
    head_dim: int, base: float, factor: float
) -> None:
    """Their stretch grows with the sequence: f s - (f - 1) at s times the trained length. At s = 2 that is f + 1."""
    theirs, _ = ROPE_INIT_FUNCTIONS["dynamic"](config("dynamic", head_dim, base, factor=factor), seq_len=2 * 2048)
    ours, _ = rope_frequencies(Rope(base=base, scaling=NTKScaling(factor=factor + 1)), head_dim)
    assert_close(ours, theirs)


def test_ntk_keeps_the_fastest_pair_and_divides_the_slowest() -> None:
    plain, _ = rope_frequencies(Rope(), 32)
    scaled, _ = rope_frequencies(Rope(scaling=NTKScaling(factor=8.0)), 32)
    assert scaled[0] == plain[0]
    assert float(plain[-1] / scaled[-1]) == pytest.approx(8.0, rel=1e-4)


@given(head_dim=widths, base=bases, factor=factors, fraction=st.sampled_from([0.3, 0.5, 1.0]))
def test_proportional_rope_equals_that_of_transformers(
    head_dim: int, base: float, factor: float, fraction: float
) -> None:
    theirs, expected = ROPE_INIT_FUNCTIONS["proportional"](
        config("proportional", head_dim, base, factor=factor, partial_rotary_factor=fraction)
    )
    ours, magnitude = rope_frequencies(
        Rope(base=base, scaling=ProportionalScaling(fraction=fraction, factor=factor)), head_dim
    )
    assert_close(ours, theirs)
    assert magnitude == expected


def test_a_lone_pair_has_nothing_to_stretch() -> None:
    assert ntk_base(10000.0, 2, 8.0) == 10000.0
    assert rope_frequencies(Rope(scaling=NTKScaling(factor=8.0)), 2)[0].tolist() == [1.0]


@given(
    head_dim=widths,
    base=bases,
    factor=factors,
    length=st.sampled_from([32, 2048, 8192]),
    betas=st.sampled_from([(32.0, 1.0), (8.0, 2.0)]),
    fraction=st.sampled_from([1.0, 0.5]),
    whole=st.booleans(),
    magnitude=st.sampled_from([None, 1.7]),
)
def test_yarn_equals_that_of_transformers(
    head_dim: int,
    base: float,
    factor: float,
    length: int,
    betas: tuple[float, float],
    fraction: float,
    whole: bool,
    magnitude: float | None,
) -> None:
    given_ = {
        "truncate": whole,
        "attention_factor": magnitude,
        "factor": factor,
        "original_max_position_embeddings": length,
        "beta_fast": betas[0],
        "beta_slow": betas[1],
    }
    theirs, expected = ROPE_INIT_FUNCTIONS["yarn"](
        config("yarn", head_dim, base, partial_rotary_factor=fraction, **given_)
    )
    scaling = YarnScaling(
        factor=factor,
        original_length=length,
        beta_fast=betas[0],
        beta_slow=betas[1],
        magnitude=magnitude,
        whole_pairs=whole,
    )
    part = Rope(base=base, fraction=fraction, scaling=scaling)
    ours, magnitude = rope_frequencies(part, part.rotated(head_dim))
    assert_close(ours, theirs)
    assert magnitude == pytest.approx(expected, rel=1e-12)


@given(
    head_dim=widths,
    base=bases,
    factor=factors,
    length=st.sampled_from([64, 8192]),
    bounds=st.sampled_from([(1.0, 4.0), (2.0, 32.0)]),
)
def test_llama3_scaling_equals_that_of_transformers(
    head_dim: int, base: float, factor: float, length: int, bounds: tuple[float, float]
) -> None:
    given_ = {
        "factor": factor,
        "original_max_position_embeddings": length,
        "low_freq_factor": bounds[0],
        "high_freq_factor": bounds[1],
    }
    theirs, expected = ROPE_INIT_FUNCTIONS["llama3"](config("llama3", head_dim, base, **given_))
    scaling = Llama3Scaling(
        factor=factor, original_length=length, low_frequency_factor=bounds[0], high_frequency_factor=bounds[1]
    )
    ours, magnitude = rope_frequencies(Rope(base=base, scaling=scaling), head_dim)
    assert_close(ours, theirs)
    assert magnitude == expected


@pytest.mark.parametrize("scaled", [False, True])
def test_turned_queries_and_keys_equal_those_of_transformers(scaled: bool) -> None:
    """With yarn the magnitude is part of it."""
    given_: dict[str, Any] = (
        {"factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0} if scaled else {}
    )
    theirs = LlamaRotaryEmbedding(config("yarn" if scaled else "default", 16, 10000.0, **given_))
    part = Rope(scaling=YarnScaling(factor=4.0, original_length=64) if scaled else None)
    positions = torch.tensor([[0, 1, 50, 300], [7, 8, 9, 10]])
    q, k = (torch.randn(2, heads, 4, 16, generator=torch.Generator().manual_seed(heads)) for heads in (4, 2))
    expected = apply_rotary_pos_emb(q, k, *theirs(q, positions))
    cos, sin = rotation(positions[:, None], *rope_frequencies(part, 16))
    for ours, right in zip((rotate(q, cos, sin), rotate(k, cos, sin)), expected, strict=True):
        assert_same(ours, right)


PRINTED = {
    1: [2**-8],
    2: [2**-4, 2**-8],
    8: [2.0 ** -(h + 1) for h in range(8)],
    16: [2.0 ** (-(h + 1) / 2) for h in range(16)],
    3: [2**-4, 2**-8, 2**-2],
    12: [*(2.0 ** -(h + 1) for h in range(8)), *(2.0 ** -(h + 0.5) for h in range(4))],
}


@pytest.mark.parametrize("heads", PRINTED)
def test_alibi_slopes_are_those_of_the_paper(heads: int) -> None:
    """For powers of two a geometric series that ends at 2^-8.

    For others those of the power below, then every other one of twice it.
    """
    assert alibi_slopes(heads).tolist() == pytest.approx(PRINTED[heads], rel=1e-6)
