"""Continuous memory (∞-former, Martins et al. 2022): a signal in basis functions, read by a density per query.

    X̄(t) = Bᵀ ψ(t)      ψ_j(t) = exp(-(t - c_j)² / 2 s²)      B = (F Fᵀ + λ I)⁻¹ F X,  F = [ψ(t_1), ψ(t_2), …]
    E_p[ψ_j] = s / √(s² + σ²) · exp(-(μ - c_j)² / 2 (s² + σ²))      p = N(μ, σ²), by the product of two Gaussians

N_b basis functions, n segments of S positions. After each segment the old signal is contracted, and coefficients are
fitted again. The regression is linear, B Wᵀ fits X Wᵀ. So the coefficients of keys and values, E = Dk + Dv features,
are stored instead of the coefficients of model vectors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from qkv.ops.at_least_single import at_least_single, single_or_wider

Matrix = NDArray[np.float64]
_POWER = 12
"""Base-2 logarithm of the number of contractions over which the growth of the old signal is estimated."""


class Fit(NamedTuple):
    """Matrices of the regression, which depend on sizes only.

    centres (N_b): c of the basis functions.   width (): s of the basis functions.   positions (2 S, N_b): coefficients
    of the positions of a segment. Rows 0 to S - 1 are for the first segment of a row, which lies on [0, 1]; the other
    rows are for later segments, on (τ, 1]. kept (N_b, N_b): map from old coefficients to the coefficients of the
    contracted signal.
    """

    centres: Tensor
    width: Tensor
    positions: Tensor
    kept: Tensor

    def like(self, x: Tensor) -> Fit:
        """Copy to the device of ``x``, in its dtype, at least single precision."""
        return Fit(*(each.to(x.device, single_or_wider(x.dtype)) for each in self))


class Density(NamedTuple):
    """Linear maps from scores to mean and variance of each head's Gaussian: weight (H, 2, N_b) and bias (H, 2)."""

    weight: Tensor
    bias: Tensor


def fit(num_basis: int, width: float, segment: int, samples: int, contraction: float, ridge: float) -> Fit:
    """Compute the matrices of the regression, float64 on the CPU. ``width``: s.

    If repeated contraction would make the old signal grow, as with a small λ and few samples, the matrix ``kept`` is
    divided by the growth per segment.
    """
    centres = (np.arange(num_basis) + 0.5) / num_basis
    times, old = (np.arange(segment) + 0.5) / segment, (np.arange(samples) + 0.5) / samples
    first = _ridge(_basis(times, centres, width), ridge)
    both = np.concatenate((contraction * old, contraction + (1 - contraction) * times))
    later = _ridge(_basis(both, centres, width), ridge)
    weights = later[:, :samples] @ _basis(old, centres, width).T
    positions = np.concatenate((first, later[:, samples:]), 1).T
    matrices = centres, np.array(width), np.ascontiguousarray(positions), weights / max(1.0, _growth(weights))
    return Fit(*map(torch.from_numpy, matrices))


def _basis(times: Matrix, centres: Matrix, width: float) -> Matrix:
    """Evaluate ψ at ``times``, (N_b, number of times)."""
    return np.exp(-(((times - centres[:, None]) / width) ** 2) / 2)


def _ridge(values: Matrix, ridge: float) -> Matrix:
    """Compute (F Fᵀ + λ I)⁻¹ F for F = ``values`` by an SVD, which does not square the condition number."""
    left, singular, right = np.linalg.svd(values, full_matrices=False)
    return (left * (singular / (singular**2 + ridge))) @ right


def _growth(matrix: Matrix) -> float:
    """Estimate the growth of vectors per product with ``matrix``: ‖Aᵏ‖^(1/k), k = 2^_POWER."""
    log = 0.0
    for _ in range(_POWER):
        size = float(np.linalg.norm(matrix))
        if size == 0.0:
            return 0.0
        matrix = (matrix / size) @ (matrix / size)
        log = 2 * (log + math.log(size))
    size = float(np.linalg.norm(matrix))
    return math.exp((log + math.log(size)) / 2**_POWER) if size else 0.0


def expected(location: Tensor, variance: Tensor, fit: Fit) -> Tensor:
    """Compute E_p[ψ] for p = N(location, variance), (…) -> (…, N_b)."""
    total = (variance + fit.width**2)[..., None]
    return fit.width * total.rsqrt() * torch.exp(-((location[..., None] - fit.centres) ** 2) / (2 * total))


def read(q: Tensor, memory: Tensor, density: Density, fit: Fit, scale: float) -> Tensor:
    """Compute outputs E_p[ψ]ᵀ V (B, H, n, S, Dv) of queries (B, H, n, S, Dk).

    memory (B, G, n, N_b, E): coefficients of the memory that each segment reads. scale: factor of the scores. Densities
    depend on K q only through two linear maps, so these are applied to K first.
    """
    heads, memory = q.shape[1] // memory.shape[1], at_least_single(memory)
    memory = memory.repeat_interleave(heads, 1) if heads > 1 else memory
    keys, values = memory.split((q.shape[-1], memory.shape[-1] - q.shape[-1]), -1)
    weight, bias = (each.to(memory.dtype) for each in density)
    maps = weight[:, None] @ keys  # (B, H, n, 2, Dk)
    location, variance = (scale * (q.to(maps.dtype) @ maps.mT) + bias[:, None, None]).unbind(-1)
    return (expected(location.sigmoid(), F.softplus(variance), fit) @ values).to(q.dtype)


def fitted(weights: Tensor, pairs: Tensor) -> Tensor:
    """Compute the coefficients Σ_i g_i x_i (…, N_b, E) of N positions.

    weights (…, N, N_b): rows g of ``Fit.positions``; pairs (…, N, E): keys and values x.
    """
    return weights.mT @ at_least_single(pairs)


def contracted(memory: Tensor, fit: Fit) -> Tensor:
    """Compute the coefficients (…, N_b, E) of the signal ``memory`` after its contraction to [0, τ]."""
    return fit.kept @ at_least_single(memory)


def memories(segments: Tensor, fit: Fit) -> Tensor:
    """Compute the memories (B, G, n, N_b, E) before each of the first n segments (B, G, n, S, E); 0 before the first.

    If there is only one segment, it may have fewer than S positions.
    """
    count, size = segments.shape[2:4]
    first, later = (part[None, :size] for part in fit.positions.chunk(2))
    start, *later_segments = fitted(torch.cat((first, later.expand(count - 1, -1, -1))), segments).unbind(2)
    after = [start]
    for new in later_segments:
        after.append(contracted(after[-1], fit) + new)
    # The memory after the last segment is computed and dropped: a row with only one segment then gives the maps a
    # gradient of 0, not None.
    return F.pad(torch.stack(after, 2)[:, :, :-1], (0, 0, 0, 0, 1, 0))


def whole(q: Tensor, pairs: Tensor, density: Density, fit: Fit, scale: float) -> Tensor:
    """Compute outputs (B, H, N, Dv) of whole rows: queries (B, H, N, Dk), concatenated keys and values (B, G, N, E)."""
    count, segment = q.shape[2], fit.positions.shape[0] // 2
    if count == 0:
        return q.new_zeros(*q.shape[:3], pairs.shape[-1] - q.shape[-1])
    size = min(segment, count)
    q, pairs = (F.pad(t, (0, 0, 0, -count % size)).unflatten(2, (-1, size)) for t in (q, pairs))
    return read(q, memories(pairs, fit), density, fit, scale).flatten(2, 3)[:, :, :count]
