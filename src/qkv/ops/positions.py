"""Position encodings: sinusoids, RoPE and its scalings, ALiBi slopes, distance buckets.

p (…): positions; D: width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def sinusoid(positions: Tensor, width: int, base: float = 10000.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Compute PE(p, 2i) = sin(p / base^(2i/D)), PE(p, 2i+1) = cos(p / base^(2i/D)), (…) -> (…, D).

    Vaswani et al. 2017.
    """
    angles = positions[..., None].to(dtype) * inverse_frequencies(width, base, positions.device, dtype)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)[..., :width]


def sinusoid_halves(positions: Tensor, width: int, base: float = 10000.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Compute [sin(p θ_0), …, cos(p θ_0), …], θ_i = base^(-2i/D), as in Transformer-XL and Marian, (…) -> (…, D)."""
    angles = positions[..., None].to(dtype) * inverse_frequencies(width, base, positions.device, dtype)
    return torch.cat((angles.sin(), angles.cos()), -1)[..., :width]


def closed_sinusoid(positions: Tensor, width: int, base: float, halves: bool, dtype: torch.dtype) -> Tensor:
    """Compute sinusoids whose frequencies base^(-i/(D/2 - 1)), i < ⌊D/2⌋, end with 1 / base, (…) -> (…, D).

    Sines alternate with cosines; with ``halves`` all sines come first. The last feature of an odd width is 0
    (tensor2tensor 2018).
    """
    half = width // 2
    exponents = torch.arange(half, device=positions.device, dtype=dtype) / max(half - 1, 1)
    angles = positions[..., None].to(dtype) * base**-exponents
    waves = (angles.sin(), angles.cos())
    joined = torch.cat(waves, -1) if halves else torch.stack(waves, -1).flatten(-2)
    return F.pad(joined, (0, width - 2 * half))


def sinusoid_2d(
    rows: Tensor, columns: Tensor, width: int, base: float = 10000.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Compute 2-D sinusoids, (…), (…) -> (…, D): the row in the first ⌊D/2⌋ features, the column in the others."""
    half = width // 2
    return torch.cat((sinusoid(rows, half, base, dtype), sinusoid(columns, width - half, base, dtype)), -1)


def inverse_frequencies(
    width: int, base: float, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Compute RoPE's frequencies, base^(-2i/D) radians per position for feature pair i < D/2 with D = ``width``."""
    return base ** (-torch.arange(0, width, 2, device=device, dtype=dtype) / width)


def grown_frequencies(width: int, base: float, factors: Tensor) -> Tensor:
    """Compute RoPE's frequencies (…, D / 2) under NTK-aware scaling by ``factors`` (…), with D = ``width``."""
    exponents = -torch.arange(0, width, 2, device=factors.device, dtype=factors.dtype) / width
    grown = base * factors ** (width / (width - 2)) if width > 2 else base * torch.ones_like(factors)
    return grown[..., None] ** exponents


def linear_scaling(frequencies: Tensor, factor: float) -> Tensor:
    """Scale frequencies θ to θ / factor (position interpolation, Chen et al. 2023)."""
    return frequencies / factor


def ntk_base(base: float, width: int, factor: float) -> float:
    """Compute the base of NTK-aware scaling, base · factor^(D / (D - 2)) with D = ``width``; unchanged for D = 2.

    This keeps the highest frequency and divides the lowest frequency by ``factor``.
    """
    return base if width == 2 else base * factor ** (width / (width - 2))


def llama3_scaling(frequencies: Tensor, factor: float, original_length: int, low: float, high: float) -> Tensor:
    """Scale frequencies θ as Llama 3: θ / factor for long wavelengths, θ for short wavelengths, interpolated between.

    Long: above original_length / low; short: below original_length / high.
    """
    turns = original_length * frequencies / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - share) * frequencies / factor + share * frequencies


def yarn_scaling(
    frequencies: Tensor,
    factor: float,
    original_length: int,
    base: float,
    betas: tuple[float, float],
    whole_pairs: bool = True,
) -> Tensor:
    """Scale frequencies by YaRN: θ / factor if low, θ if high, with a linear ramp between them (Peng et al. 2023).

    ``betas`` (fast, slow): numbers of rotations within ``original_length`` at which the ramp over the pair index starts
    and ends. whole_pairs: round the start down and the end up to whole pair indices.
    """
    pairs = frequencies.shape[0]

    def pair_with(turns: float) -> float:
        return pairs * math.log(original_length / (turns * 2 * math.pi)) / math.log(base)

    first, last = pair_with(betas[0]), pair_with(betas[1])
    if whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    index = torch.arange(pairs, device=frequencies.device, dtype=frequencies.dtype)
    slow = ((index - first) / max(last - first, 1e-3)).clamp(0, 1)
    return slow * frequencies / factor + (1 - slow) * frequencies


def rotation(positions: Tensor, frequencies: Tensor, magnitude: float = 1.0) -> tuple[Tensor, Tensor]:
    """Compute RoPE's magnitude · (cos, sin) of position · frequency, each (…, 2 · pairs): both halves are equal."""
    angles = positions[..., None].to(frequencies.dtype) * frequencies
    angles = torch.cat((angles, angles), -1)
    return magnitude * angles.cos(), magnitude * angles.sin()


def grid_rotation(coordinates: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Compute RoPE on a grid: (cos, sin) of coordinate · frequency, each (…, 2 · axes · pairs), for ``rotate``.

    coordinates (…, axes). The feature pairs of the first axis come first, then the feature pairs of the next axis.
    """
    angles = (coordinates[..., None].to(frequencies.dtype) * frequencies).flatten(-2)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def axes_rotation(
    places: Tensor, axes: tuple[int, ...], frequencies: Tensor, magnitude: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Compute RoPE by several axes: magnitude · (cos, sin) of places[axis of the pair] · frequency, for ``rotate``.

    places (…, A).   axes: axis of each pair.   frequencies (pairs).   Result (…, 2 · pairs): both halves are equal.
    """
    chosen = places[..., torch.tensor(axes, device=places.device)]
    angles = chosen.to(frequencies.dtype) * frequencies
    angles = torch.cat((angles, angles), -1)
    return magnitude * angles.cos(), magnitude * angles.sin()


def normalised_coordinates(numbers: Tensor, sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Compute 2π ((2 c - 1) / S - 1) of coordinates c = 1 … S on axes of ``sizes`` S, from -2π to 2π in ``dtype``.

    numbers (…, axes), integers. Positions that are not on the grid have coordinates 0 and keep them.
    """
    centres = (2 * numbers - 1).to(dtype) / torch.tensor(sizes, device=numbers.device) - 1
    return (2 * math.pi * centres).masked_fill(numbers == 0, 0.0)


def grid_offsets(coordinates: Tensor, sizes: tuple[int, int]) -> Tensor:
    """Compute the index of the offset of each query from each key on a grid, coordinates (1, N, 2) -> (1, N, N).

    The index is (row offset + R - 1)(2 C - 1) + column offset + C - 1 for a grid of ``sizes`` (R, C). Positions that
    are not on the grid have coordinates (0, 0). With such a position the index is S = (2 R - 1)(2 C - 1) if it is the
    query, S + 1 if it is the key, and S + 2 if both are off the grid.
    """
    rows, columns = sizes
    away = coordinates[:, :, None] - coordinates[:, None, :]
    offset = (away[..., 0] + rows - 1) * (2 * columns - 1) + away[..., 1] + columns - 1
    outside = coordinates[..., 0] == 0
    query, key = outside[:, :, None], outside[:, None, :]
    special = (2 * rows - 1) * (2 * columns - 1) + key.long() + (query & key).long()
    return torch.where(query | key, special, offset)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + Dr/2) of the first Dr features (RoPE, Su et al. 2021). x (…, D), cos and sin (…, Dr)."""
    turned = cos.shape[-1]
    head, rest = x[..., :turned], x[..., turned:]
    a, b = head.chunk(2, -1)
    head = head * cos.to(x.dtype) + torch.cat((-b, a), -1) * sin.to(x.dtype)
    return head if rest.shape[-1] == 0 else torch.cat((head, rest), -1)


def alibi_slopes(num_heads: int, device: torch.device | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Compute ALiBi's slopes (H,): m_h = 2^(-8 h / H), h = 1..H, if H is a power of two (Press et al. 2022).

    Else the slopes of the next lower power of two, followed by every other slope of the next higher power of two.
    """

    def powers(count: int) -> list[float]:
        return [2.0 ** (-8.0 * (h + 1) / count) for h in range(count)]

    below = 1 << (num_heads.bit_length() - 1)
    slopes = powers(below) + powers(2 * below)[0::2][: num_heads - below]
    return torch.tensor(slopes, device=device, dtype=dtype)


def yarn_magnitude(factor: float) -> float:
    """Compute YaRN's factor of cos and sin, 0.1 ln(factor) + 1; scores are scaled by its square (Peng et al. 2023)."""
    return 0.1 * math.log(factor) + 1.0


def clipped_distances(query: Tensor, key: Tensor, reach: int) -> Tensor:
    """Compute clip(j - i, -reach, reach) + reach, in [0, 2 reach], for query (…, N), key (…, M) -> (…, N, M)."""
    return (key[..., None, :] - query[..., :, None]).clamp(-reach, reach) + reach


def distance_buckets(distance: Tensor, num_buckets: int, max_distance: int, causal: bool) -> Tensor:
    """Compute the bucket in [0, num_buckets) of the distance key - query (T5, Raffel et al. 2020).

    For n positions back and b buckets: n if n < b/2, else
    min(b - 1, ⌊b/2 + b/2 · log(n / (b/2)) / log(max_distance / (b/2))⌋).
    causal: later keys have n = 0. Otherwise earlier and later keys have b = num_buckets / 2 buckets each.
    """
    first = torch.zeros_like(distance)
    if not causal:
        num_buckets //= 2
        first = (distance > 0).long() * num_buckets
    back = (-distance).clamp(min=0) if causal else distance.abs()
    exact = num_buckets // 2
    # In this order and in fp32, so that bucket borders equal those of the published models.
    share = torch.log(back.clamp(min=1).to(torch.float32) / exact) / math.log(max_distance / exact)
    far = (exact + (share * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return first + torch.where(back < exact, back, far)
