"""Tokens as particles on the sphere (Geshkovski, Letrouit, Polyanskiy & Rigollet 2023): they attract and cluster.

Attention alone, with identity matrices, layer norm and depth as time t, moves n unit vectors x_i by

    ẋ_i = P_i (1 / Z_i) Σ_j e^(β x_i · x_j) x_j,    P_i y = y - (x_i · y) x_i

with Z_i = Σ_j e^(β x_i · x_j) (SA), or Z_i = n (USA, without the softmax's denominator).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Dynamics = Literal["SA", "USA"]
CLOSE = 1e-3
"""Particles whose inner product is at least 1 - CLOSE belong to one cluster."""


def random_particles(count: int, dim: int, rows: int = 1, seed: int = 0) -> Tensor:
    """Draw ``rows`` sets of unit vectors (rows, count, dim), uniformly on the sphere, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, count, dim, generator=generator, dtype=torch.float64), dim=-1)


def velocity(x: Tensor, beta: Tensor | float, dynamics: Dynamics = "SA") -> Tensor:
    """Return ẋ (B, n, d) of unit vectors x (B, n, d). beta: inverse temperature, a number or (B, 1, 1)."""
    scores = beta * (x @ x.mT)
    weights = scores.softmax(-1) if dynamics == "SA" else scores.exp() / x.shape[1]
    pull = weights @ x
    return pull - (x * pull).sum(-1, keepdim=True) * x


def moved(x: Tensor, beta: Tensor | float, step: float, dynamics: Dynamics = "SA") -> Tensor:
    """Return the particles after the time ``step``, by one Runge-Kutta step of order 4 and a projection."""
    k1 = velocity(x, beta, dynamics)
    k2 = velocity(x + step / 2 * k1, beta, dynamics)
    k3 = velocity(x + step / 2 * k2, beta, dynamics)
    k4 = velocity(x + step * k3, beta, dynamics)
    return F.normalize(x + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4), dim=-1)


def trajectory(
    x: Tensor, beta: Tensor | float, times: int, every: float, dynamics: Dynamics = "SA", step: float = 0.1
) -> Iterator[Tensor]:
    """Yield the particles at the times 0, every, 2 every … (times - 1) every."""
    parts = max(1, round(every / step))
    for number in range(times):
        for _ in range(parts if number else 0):
            x = moved(x, beta, every / parts, dynamics)
        yield x


def energy(x: Tensor, beta: Tensor | float) -> Tensor:
    """Return E_β = 1 / (2 β n²) Σ_ij e^(β x_i · x_j) of each set, (B); it never falls along the dynamics."""
    factor = torch.as_tensor(beta, dtype=x.dtype).flatten()
    return (beta * (x @ x.mT)).exp().sum((1, 2)) / (2 * factor * x.shape[1] ** 2)


def count_clusters(x: Tensor, close: float = CLOSE) -> Tensor:
    """Return the number of clusters of each set, (B): connected groups of pairs with x_i · x_j ≥ 1 - close."""
    reach = x @ x.mT >= 1 - close
    for _ in range(max(1, (x.shape[1] - 1).bit_length())):
        reach = (reach.double() @ reach.double()) > 0
    first = reach.double().argmax(-1)  # lowest index in the group of each particle
    return (first == torch.arange(x.shape[1])).sum(-1)


def share_of_close_pairs(x: Tensor, close: float = CLOSE) -> Tensor:
    """Return the share of pairs i ≠ j with x_i · x_j ≥ 1 - close in each set, (B)."""
    count = x.shape[1]
    return ((x @ x.mT >= 1 - close).double().sum((1, 2)) - count) / (count * (count - 1))


def inner_product_in_high_dimension(
    beta: Tensor, count: int, times: int, every: float, dynamics: Dynamics = "SA", step: float = 0.01
) -> Tensor:
    """Return γ_β(t) (times, betas): the inner product of every pair of particles that begin orthogonal to each other.

    γ̇ = 2 e^(βγ) (1 - γ) ((n - 1) γ + 1) / (e^β + (n - 1) e^(βγ)), with n as the denominator for USA, γ(0) = 0: what
    uniform particles do for d → ∞ (theorem on high dimension of the paper).
    """

    def rate(gamma: Tensor) -> Tensor:
        pull = (beta * gamma).exp()
        total = beta.exp() + (count - 1) * pull if dynamics == "SA" else torch.full_like(pull, float(count))
        return 2 * pull * (1 - gamma) * ((count - 1) * gamma + 1) / total

    gamma, result, parts = torch.zeros_like(beta), list[Tensor](), max(1, round(every / step))
    for number in range(times):
        for _ in range(parts if number else 0):
            middle = gamma + every / parts / 2 * rate(gamma)
            gamma = gamma + every / parts * rate(middle)
        result.append(gamma)
    return torch.stack(result)
