"""Mixers without scores a second time, as loops over single positions and features."""

from __future__ import annotations

from typing import Any

import torch
from tests.contracts.references import activated, affine, normed, reference
from torch import Tensor


@reference("token_mlp")
def token_mlp(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for feature in range(x.shape[2]):
            sums = m.up.bias.clone()
            for j in range(x.shape[1]):
                sums = sums + m.up.weight[:, j] * x[b, j, feature]
            hidden = activated(m.spec.activation, sums)
            for i in range(x.shape[1]):
                out[b, i, feature] = m.down.bias[i] + sum(m.down.weight[i, k] * h for k, h in enumerate(hidden))
    return out


@reference("gmlp")
def gmlp(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        hidden = [activated(m.spec.activation, affine(m.up, v)) for v in x[b]]
        half = len(hidden[0]) // 2
        gates = [normed(h[half:], m.norm, m.spec.norm) for h in hidden]
        for i in range(x.shape[1]):
            gate = m.bias[i] + sum(m.weight[i, j] * gates[j] for j in range(x.shape[1]))
            out[b, i] = affine(m.down, hidden[i][:half] * gate)
    return out


@reference("random_mixing")
def random_mixing(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            for j in range(x.shape[1]):
                out[b, i] += m.matrix[i, j] * x[b, j]
    return out
