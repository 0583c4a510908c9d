"""Position information: sinusoids, rotations, ALiBi slopes.

p (…) positions; D the width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoid(positions: Tensor, width: int, base: float = 10000.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """PE(p, 2i) = sin(p / base^(2i/D)), PE(p, 2i+1) = cos(p / base^(2i/D)) (Vaswani et al. 2017). (…) -> (…, D)."""
    angles = positions[..., None].to(dtype) * inverse_frequencies(width, base, positions.device, dtype)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)[..., :width]


def sinusoid_2d(rows: Tensor, columns: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """The sinusoid of the row in the first half of the features, that of the column in the second. (…), (…) -> (…, D).

    For grids, as in image Transformers; with an odd D the row has the smaller part.
    """
    half = width // 2
    return torch.cat((sinusoid(rows, half, base), sinusoid(columns, width - half, base)), -1)


def inverse_frequencies(width: int, base: float, device: torch.device | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """base^(-2i/D), i < D/2, in radians a position."""
    return base ** (-torch.arange(0, width, 2, device=device, dtype=dtype) / width)


def linear_scaling(frequencies: Tensor, factor: float) -> Tensor:
    """θ / factor (Chen et al. 2023)."""
    return frequencies / factor


def ntk_base(base: float, width: int, factor: float) -> float:
    """base · factor^(D / (D - 2)): the highest frequency keeps, the lowest is divided by ``factor``. A lone pair (D = 2) is the highest."""
    return base if width == 2 else base * factor ** (width / (width - 2))


def llama3_scaling(frequencies: Tensor, factor: float, original_length: int, low: float, high: float) -> Tensor:
    """θ / factor where the wavelength exceeds original_length / low, θ where it is below original_length / high, mixed between."""
    turns = original_length * frequencies / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - share) * frequencies / factor + share * frequencies


def yarn_scaling(frequencies: Tensor, factor: float, original_length: int, base: float, betas: tuple[float, float]) -> Tensor:
    """θ / factor for slow pairs, θ for fast ones, a ramp over the pair's index between (Peng et al. 2023).

    ``betas`` (fast, slow): full turns within ``original_length`` at which the ramp begins and ends.
    """
    pairs = frequencies.shape[0]

    def pair_with(turns: float) -> float:
        return pairs * math.log(original_length / (turns * 2 * math.pi)) / math.log(base)

    first = max(math.floor(pair_with(betas[0])), 0)
    last = min(math.ceil(pair_with(betas[1])), 2 * pairs - 1)
    index = torch.arange(pairs, device=frequencies.device, dtype=frequencies.dtype)
    slow = ((index - first) / max(last - first, 1e-3)).clamp(0, 1)
    return slow * frequencies / factor + (1 - slow) * frequencies


def rotation(positions: Tensor, frequencies: Tensor, magnitude: float = 1.0) -> tuple[Tensor, Tensor]:
    """(cos, sin) of p·θ, each (…, 2·pairs) with the pairs' angles written twice, times ``magnitude``."""
    angles = positions[..., None].to(frequencies.dtype) * frequencies
    angles = torch.cat((angles, angles), -1)
    return magnitude * angles.cos(), magnitude * angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x with each pair (i, i + Dr/2) of its first Dr features turned by its angle (RoPE, Su et al. 2021). x (…, D), cos, sin (…, Dr)."""
    turned = cos.shape[-1]
    head, rest = x[..., :turned], x[..., turned:]
    a, b = head.chunk(2, -1)
    head = head * cos.to(x.dtype) + torch.cat((-b, a), -1) * sin.to(x.dtype)
    return head if rest.shape[-1] == 0 else torch.cat((head, rest), -1)


def alibi_slopes(num_heads: int, device: torch.device | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """m_h = 2^(-8 h / H), h = 1..H, for H a power of two; else those of the power below, then every other one of the power above (Press et al. 2022)."""

    def powers(count: int) -> list[float]:
        return [2.0 ** (-8.0 * (h + 1) / count) for h in range(count)]

    below = 1 << (num_heads.bit_length() - 1)
    slopes = powers(below) + powers(2 * below)[0::2][: num_heads - below]
    return torch.tensor(slopes, device=device, dtype=dtype)


def yarn_magnitude(factor: float) -> float:
    """0.1 ln(factor) + 1: what cos and sin are multiplied by, so that logits grow by its square (Peng et al. 2023)."""
    return 0.1 * math.log(factor) + 1.0


def clipped_distances(query: Tensor, key: Tensor, reach: int) -> Tensor:
    """clip(j - i, -reach, reach) + reach, between 0 and 2 reach. Positions query (…, N), key (…, M) -> (…, N, M)."""
    return (key[..., None, :] - query[..., :, None]).clamp(-reach, reach) + reach


def distance_buckets(distance: Tensor, num_buckets: int, max_distance: int, causal: bool) -> Tensor:
    """The bucket of each key minus query distance, between 0 and num_buckets - 1 (T5, Raffel et al. 2020).

    With n the distance back and b buckets: n itself below b / 2, then b/2 + b/2 · log(n / (b/2)) / log(max_distance / (b/2)), at most b - 1.
    Causal: later keys count as distance 0. Else they have the upper half of the buckets, and b is half of them.
    """
    first = torch.zeros_like(distance)
    if not causal:
        num_buckets //= 2
        first = (distance > 0).long() * num_buckets
    back = (-distance).clamp(min=0) if causal else distance.abs()
    exact = num_buckets // 2
    # In this order and in fp32, so that borders fall as in the published models.
    share = torch.log(back.clamp(min=1).to(torch.float32) / exact) / math.log(max_distance / exact)
    far = (exact + (share * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return first + torch.where(back < exact, back, far)
