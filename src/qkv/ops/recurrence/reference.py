"""The gated recurrent unit (Cho et al. 2014), with the reset gate applied after the product, as the equations say it.

r = σ(W_r x + b_r + U_r h + c_r)     z = σ(W_z x + b_z + U_z h + c_z)     n = tanh(W_n x + b_n + r ⊙ (U_n h + c_n))
h' = (1 - z) ⊙ n + z ⊙ h

x (B, N, D)   h (B, E)   weights (W (3E, D), U (3E, E), b (3E), c (3E)), gates in the order r, z, n
"""

from __future__ import annotations

import torch
from torch import Tensor

Weights = tuple[Tensor, Tensor, Tensor, Tensor]


def gru(x: Tensor, h: Tensor, weights: Weights, starts: Tensor | None = None) -> Tensor:
    """Every h (B, N, E). starts (B, N): where a new document begins and h is 0 again."""
    w, u, b, c = weights
    hs = []
    for i in range(x.shape[1]):
        if starts is not None:
            h = h.masked_fill(starts[:, i, None], 0.0)
        xr, xz, xn = (x[:, i] @ w.t() + b).chunk(3, -1)
        hr, hz, hn = (h @ u.t() + c).chunk(3, -1)
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        n = (xn + r * hn).tanh()
        h = (1 - z) * n + z * h
        hs.append(h)
    return torch.stack(hs, 1) if hs else x.new_zeros(x.shape[0], 0, h.shape[-1])
