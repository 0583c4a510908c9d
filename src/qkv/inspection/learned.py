"""Number of trainable parameters, counted on the model itself without allocating it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qkv.layers.branch import matrices
from qkv.models.adapt import adapt
from qkv.models.transformer import Transformer
from qkv.spec.model import Model
from qkv.spec.training import Training


@dataclass(frozen=True)
class Trained:
    """Counts of parameters. parameters: trainable; matrices: trainable in matrices of blocks; added: in adapters."""

    parameters: int
    matrices: int
    added: int


def learned(model: Model, training: Training) -> Trained:
    """Count the trainable parameters of ``model`` under ``training``. Raises ``UserError`` for patterns without a match."""
    with torch.device("meta"):
        module = Transformer(model)
        before = sum(p.numel() for p in module.parameters())
        adapt(module, training)
    learning = [p for p in module.parameters() if p.requires_grad]
    maps = sum(p.numel() for p in matrices(module) if p.requires_grad)
    return Trained(sum(p.numel() for p in learning), maps, sum(p.numel() for p in module.parameters()) - before)
