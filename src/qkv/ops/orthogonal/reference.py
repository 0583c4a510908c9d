"""The orthogonal factor of a matrix by Newton–Schulz steps of degree five (Jordan et al. 2024, "Muon").

    X = G / ‖G‖        five times:   A = X Xᵀ,   X ← a X + (b A + c A²) X        a, b, c = 3.4445, −4.7750, 2.0315

G = U S Vᵀ (…, M, N), M ≤ N  ->  U S' Vᵀ with S' between about 0.7 and 1.2: the coefficients raise small singular values as fast as
possible and do not converge to 1. A matrix with M > N is transposed before and after, which gives the same with the smaller A.
"""

from __future__ import annotations

from torch import Tensor

A, B, C = 3.4445, -4.7750, 2.0315
STEPS = 5
SMALLEST = 1e-7
"""The least norm that a matrix is divided by; 0 stays 0."""


def orthogonal(g: Tensor) -> Tensor:
    """g (…, M, N) -> (…, M, N), each matrix by itself, in the precision of ``g``."""
    if g.shape[-2] > g.shape[-1]:
        return orthogonal(g.mT).mT
    x = g / norms(g)
    for _ in range(STEPS):
        a = x @ x.mT
        x = A * x + (B * a + C * a @ a) @ x
    return x


def norms(g: Tensor) -> Tensor:
    """The Frobenius norm of each matrix, (…, 1, 1)."""
    return g.norm(dim=(-2, -1), keepdim=True).clamp(min=SMALLEST)
