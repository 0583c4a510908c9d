"""Linear attention of a self-contained model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.interop.remote.pieces.common import PARTS, Part, Place


class LinearAttention(nn.Module):
    """Causal linear attention Σ_{j<=i} φ(q_i)·φ(k_j) v_j / Σ_{j<=i} φ(q_i)·φ(k_j), φ = elu + 1 (Katharopoulos et al.
    2020).
    """

    def __init__(self, part: Part, width: int):
        super().__init__()
        self.heads = part["heads"]
        self.qkv = nn.Linear(width, 3 * width, bias=part["bias"])
        self.output = nn.Linear(width, width, bias=part["bias"])

    def forward(self, x: Tensor, place: Place) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, k = (t.clamp(max=0).exp() + F.relu(t) for t in (q, k))
        if place.valid is not None:
            k = k * place.valid[:, None, :, None]
        scores = (q @ k.transpose(-1, -2)).tril()
        below, exact = scores.sum(-1, keepdim=True), torch.finfo(x.dtype)
        out = scores @ v / below.where(below > exact.tiny / exact.eps, 1.0)
        return self.output(out.transpose(1, 2).flatten(2))


PARTS["branch.linear_attention"] = LinearAttention
