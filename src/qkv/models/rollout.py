"""Attention rollout: how much each input position contributes to the vectors that the head reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.layers.tap import Recorder
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single


def rollout(weights: Sequence[Tensor]) -> Tensor:
    """Compute attention rollout (Abnar & Zuidema 2020), (B, N, N), from the weights (B, H, N, N) of all layers in
    order.

    R = A_L … A_1 with A = (mean over heads + I) / 2, where I stands for the residual connection. Rows sum to 1.
    """
    mixed = [(each.mean(1) + torch.eye(each.shape[-1], dtype=each.dtype, device=each.device)) / 2 for each in weights]
    return list(accumulate(mixed, lambda below, above: above @ below))[-1]


@torch.no_grad()
def heat(model: Transformer, signal: Signal) -> Tensor | None:
    """Return the contribution of each grid position of ``signal`` to the vectors that the head reads, by attention
    rollout.

    Shape (B, rows, columns), or (B, times, rows, columns) on a grid of three axes. A layer without attention weights
    between all positions counts as the identity. None if no layer has such weights, if the positions do not lie on a
    grid of two or three axes, or if the model has latents or merges.
    """
    grid = model.frontend.grid(signal)
    if grid is None or len(grid.sizes) not in (2, 3) or model.spec.latents or model.spec.merges:
        return None
    paths = [branch.path_of("weights") for branch in model.branches if "weights" in branch.points()]
    tap, count = Recorder(*paths), model.frontend.count(signal)
    with evaluating(model):
        model.features(signal, tap=tap)
    weights = [at_least_single(each) for each in tap.records.values() if each.shape[-2:] == (count, count)]
    if not weights:
        return None
    read = rollout(weights)[:, : model.spec.head.leading_read or count].mean(1)
    return read[:, grid.leading :].unflatten(1, grid.sizes)
