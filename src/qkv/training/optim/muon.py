"""Muon (Jordan et al. 2024): SGD with momentum and orthogonalised updates.

M ← μ M + (1 − μ) G        U = μ M + (1 − μ) G (Nesterov), or M
W ← (1 − η λ) W − η √max(1, A/B) orthogonal(U)        W (A, B)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from qkv.ops.orthogonal.choose import orthogonal
from qkv.parallel.shards import like, whole
from qkv.spec.training import Muon as MuonSpec

# Maximum number of elements of a matrix that is stacked with others. Products of larger matrices already use all
# cores, so stacking them would only add a copy.
_STACKED = 1 << 18


class Muon(torch.optim.Optimizer):
    """Optimiser Muon for matrices (A, B). Matrices of equal shape are orthogonalised as one batch, which is faster for
    small models.

    Of a matrix in shards, every process gathers the momentum and orthogonalises all of it.
    """

    def __init__(self, parameters: Iterable[Tensor], spec: MuonSpec):
        settings = {
            "lr": spec.lr,
            "momentum": spec.momentum,
            "nesterov": spec.nesterov,
            "weight_decay": spec.weight_decay,
        }
        super().__init__(parameters, settings)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all matrices that have gradients; ``closure`` is ignored."""
        for group in self.param_groups:
            for matrices in _of_one_shape(p for p in group["params"] if p.grad is not None):
                self._update(matrices, group)

    def _update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        rate, decay = group["lr"], group["weight_decay"]
        updates = [whole(self._momentum(p, group)) for p in matrices]
        for p, update in zip(matrices, _orthogonal(updates), strict=True):
            p.mul_(1 - rate * decay)
            p.add_(like(update, p), alpha=-rate * math.sqrt(max(1.0, p.shape[0] / p.shape[1])))

    def _momentum(self, parameter: Tensor, group: dict[str, Any]) -> Tensor:
        """Update the momentum M of a parameter and return its update U, before orthogonalisation."""
        assert parameter.grad is not None
        remembered, momentum = self.state[parameter], group["momentum"]
        if "momentum_buffer" not in remembered:
            remembered["momentum_buffer"] = torch.zeros_like(parameter)
        m: Tensor = remembered["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(m, momentum) if group["nesterov"] else m


def _of_one_shape(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield groups of matrices of equal shape, up to transposition; a matrix with more than ``_STACKED`` elements is a
    group of its own.
    """
    groups: dict[tuple[int, int], list[Tensor]] = {}
    for p in parameters:
        if p.numel() > _STACKED:
            yield [p]
        else:
            groups.setdefault((min(p.shape), max(p.shape)), []).append(p)
    yield from groups.values()


def _orthogonal(matrices: list[Tensor]) -> Iterable[Tensor]:
    if len(matrices) == 1:
        return [orthogonal(matrices[0])]
    lying = orthogonal(torch.stack([u.mT if u.shape[0] > u.shape[1] else u for u in matrices]))
    return [x.mT if u.shape[0] > u.shape[1] else x for u, x in zip(matrices, lying, strict=True)]
