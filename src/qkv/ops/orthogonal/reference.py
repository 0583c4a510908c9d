"""Reference implementation of orthogonalisation by quintic Newton–Schulz iterations (Jordan et al. 2024, "Muon").

    X = G / ‖G‖        five times:   A = X Xᵀ,   X ← a X + (b A + c A²) X        a, b, c = 3.4445, −4.7750, 2.0315

G = U S Vᵀ (…, M, N), M ≤ N  ->  U S' Vᵀ with S' between about 0.7 and 1.2: the coefficients maximise the growth of
small singular values and do not converge to 1. For M > N the matrix is transposed before and after, so that A is
smaller.
"""

from __future__ import annotations

from torch import Tensor

A, B, C = 3.4445, -4.7750, 2.0315
STEPS = 5
SMALLEST = 1e-7
"""Lower bound of the norm by which a matrix is divided; a zero matrix stays 0."""


def orthogonal(g: Tensor) -> Tensor:
    """Orthogonalise each matrix of g (…, M, N), in the dtype of g."""
    if g.shape[-2] > g.shape[-1]:
        return orthogonal(g.mT).mT
    x = g / norms(g)
    for _ in range(STEPS):
        a = x @ x.mT
        x = A * x + (B * a + C * a @ a) @ x
    return x


def norms(g: Tensor) -> Tensor:
    """Compute the Frobenius norm of each matrix of g (…, M, N), at least ``SMALLEST``, as (…, 1, 1)."""
    return g.norm(dim=(-2, -1), keepdim=True).clamp(min=SMALLEST)
