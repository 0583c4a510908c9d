"""Weighted average of the outputs of all blocks so far, after each block (DenseFormer)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from qkv.spec.models.blocks import DepthAverage as DepthAverageSpec


class DepthAverage(nn.Module):
    """Average y_i = Σ_j w_ij x_j of x_0, the input of the first block, and x_j, the output of block j <= i.

    The next block reads y_i (DenseFormer, Pagliardini et al. 2024). With period p, only every p-th block is followed by
    an average. With dilation k, the average is over every k-th output, j = i, i - k, …. Initially w_ii = 1 and all
    other weights are 0, so that y_i = x_i.
    """

    def __init__(self, part: DepthAverageSpec, blocks: int):
        """``blocks``: number of executed blocks; a repeated block counts each time."""
        super().__init__()
        self.part = part
        counts = {i: len(part.averaged(i)) for i in range(part.period, blocks + 1, part.period)}
        self.weights = nn.ParameterDict({str(i): nn.Parameter(_first(count)) for i, count in counts.items()})

    def forward(self, outputs: Sequence[Tensor]) -> Tensor:
        """Compute the input of the next block from ``outputs`` x_0 … x_i, each (B, N, D)."""
        i = len(outputs) - 1
        if str(i) not in self.weights:
            return outputs[-1]
        weights = self.weights[str(i)].to(outputs[-1].dtype)
        first, *earlier = self.part.averaged(i)
        y = weights[0] * outputs[first]
        for place, j in enumerate(earlier, 1):
            y = torch.addcmul(y, weights[place], outputs[j])
        return y


def _first(count: int) -> Tensor:
    """Return the initial weights: 1 for the latest output, 0 for the others."""
    weights = torch.zeros(count)
    weights[0] = 1.0
    return weights
