"""Continuous memory (∞-former, Martins et al. 2022): a signal in basis functions, refitted, and read by densities.

    X̄(t) = Bᵀ ψ(t)      ψ_j(t) = exp(-(t - c_j)² / 2 s²)      B = (F Fᵀ + λ I)⁻¹ F X,  F = [ψ(t_1), ψ(t_2), …]
    E_p[ψ_j] = s / √(s² + σ²) · exp(-(μ - c_j)² / 2 (s² + σ²))      p = N(μ, σ²), by the product of two Gaussians

N_b basis functions, segments of S positions, n segments. Coefficients are those of keys and values, E = Dk + Dv
features: B Wᵀ is the regression of X Wᵀ, so that nothing of the width of the model is kept.
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
"""Segments after which the older signal may not have grown, as a power of two."""


class Fit(NamedTuple):
    """Matrices of the regression, functions of sizes alone.

    centres (N_b): c of the basis functions.   width (): their s.   positions (2 S, N_b): coefficients of the positions
    of a segment, of the row's first one in the first S rows, which lies on [0, 1], and of any other, on (τ, 1].
    kept (N_b, N_b): the map of old coefficients to those of the contracted signal.
    """

    centres: Tensor
    width: Tensor
    positions: Tensor
    kept: Tensor

    def like(self, x: Tensor) -> Fit:
        """Copy on the device of ``x``, in its dtype, at least single precision."""
        return Fit(*(each.to(x.device, single_or_wider(x.dtype)) for each in self))


class Density(NamedTuple):
    """Maps of scores to the Gaussian of each head: weight (H, 2, N_b) and bias (H, 2), of the mean and the variance."""

    weight: Tensor
    bias: Tensor


def fit(num_basis: int, width: float, segment: int, samples: int, contraction: float, ridge: float) -> Fit:
    """Matrices of the regression, float64 on the CPU. ``width``: s.

    The map of old coefficients is divided by its growth per segment where that exceeds 1, as can happen if λ is small
    and the samples few, so that no signal grows without bounds.
    """
    centres = (np.arange(num_basis) + 0.5) / num_basis
    times, old = (np.arange(segment) + 0.5) / segment, (np.arange(samples) + 0.5) / samples
    first = _ridge(_basis(times, centres, width), ridge)
    both = np.concatenate((contraction * old, contraction + (1 - contraction) * times))
    later = _ridge(_basis(both, centres, width), ridge)
    kept = later[:, :samples] @ _basis(old, centres, width).T
    positions = np.concatenate((first, later[:, samples:]), 1).T
    found = centres, np.array(width), np.ascontiguousarray(positions), kept / max(1.0, _growth(kept))
    return Fit(*map(torch.from_numpy, found))


def _basis(times: Matrix, centres: Matrix, width: float) -> Matrix:
    """ψ at ``times``, (N_b, number of times)."""
    return np.exp(-(((times - centres[:, None]) / width) ** 2) / 2)


def _ridge(values: Matrix, ridge: float) -> Matrix:
    """(F Fᵀ + λ I)⁻¹ F of ``values`` F, by its singular values, which squares no condition number."""
    left, singular, right = np.linalg.svd(values, full_matrices=False)
    return (left * (singular / (singular**2 + ridge))) @ right


def _growth(matrix: Matrix) -> float:
    """Growth of vectors per product with ``matrix`` over many products: ‖Aᵏ‖^(1/k), k = 2^_POWER."""
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
    """E_p[ψ] of p = N(location, variance), (…) -> (…, N_b)."""
    total = (variance + fit.width**2)[..., None]
    return fit.width * total.rsqrt() * torch.exp(-((location[..., None] - fit.centres) ** 2) / (2 * total))


def read(q: Tensor, memory: Tensor, density: Density, fit: Fit, scale: float) -> Tensor:
    """Contexts E_p[ψ]ᵀ V (B, H, n, S, Dv) of queries (B, H, n, S, Dk), memories (B, G, n, N_b, E) of each segment.

    scale: factor of the scores. The densities read K q through two linear maps only, so these are applied to K first.
    """
    heads, memory = q.shape[1] // memory.shape[1], at_least_single(memory)
    memory = memory.repeat_interleave(heads, 1) if heads > 1 else memory
    keys, values = memory.split((q.shape[-1], memory.shape[-1] - q.shape[-1]), -1)
    weight, bias = (each.to(memory.dtype) for each in density)
    maps = weight[:, None] @ keys  # (B, H, n, 2, Dk)
    location, variance = (scale * (q.to(maps.dtype) @ maps.mT) + bias[:, None, None]).unbind(-1)
    return (expected(location.sigmoid(), F.softplus(variance), fit) @ values).to(q.dtype)


def fitted(weights: Tensor, pairs: Tensor) -> Tensor:
    """Coefficients Σ_i g_i x_i (…, N_b, E) of positions: their rows g of ``Fit.positions`` (…, N, N_b), x (…, N, E)."""
    return weights.mT @ at_least_single(pairs)


def contracted(memory: Tensor, fit: Fit) -> Tensor:
    """Coefficients (…, N_b, E) of the signal of ``memory`` once it is contracted to [0, τ]."""
    return fit.kept @ at_least_single(memory)


def memories(segments: Tensor, fit: Fit) -> Tensor:
    """Memories (B, G, n, N_b, E) before each of the n first segments (B, G, n, S, E) of rows; 0 before the first.

    Segments may all be cut off after the same number of positions, if there is only one.
    """
    count, size = segments.shape[2:4]
    first, later = (part[None, :size] for part in fit.positions.chunk(2))
    start, *others = fitted(torch.cat((first, later.expand(count - 1, -1, -1))), segments).unbind(2)
    after = [start]
    for new in others:
        after.append(contracted(after[-1], fit) + new)
    # The last one is dropped here, so that maps of a row of one segment have a gradient, of 0.
    return F.pad(torch.stack(after, 2)[:, :, :-1], (0, 0, 0, 0, 1, 0))


def whole(q: Tensor, pairs: Tensor, density: Density, fit: Fit, scale: float) -> Tensor:
    """Contexts (B, H, N, Dv) of whole rows: queries (B, H, N, Dk), keys and values side by side (B, G, N, E)."""
    count, segment = q.shape[2], fit.positions.shape[0] // 2
    if count == 0:
        return q.new_zeros(*q.shape[:3], pairs.shape[-1] - q.shape[-1])
    size = min(segment, count)
    q, pairs = (F.pad(t, (0, 0, 0, -count % size)).unflatten(2, (-1, size)) for t in (q, pairs))
    return read(q, memories(pairs, fit), density, fit, scale).flatten(2, 3)[:, :, :count]
