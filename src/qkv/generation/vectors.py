"""Autoregressive generation of continuous vectors: each step adds one vector to every row."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.layers.signal import Signal
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer

Draw = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Function from outputs of the head (B, …) to (sampled vectors (B, F), next input values of the front end (B, …))."""


@torch.inference_mode()
def generate_vectors(model: Transformer, first: Tensor, count: int, draw: Draw) -> Tensor:
    """Generate ``count`` vectors per row, (B, count, F). ``first`` (B, …): input values of the first step."""
    values, vectors = first.to(model.device), list[Tensor]()
    with evaluating(model):
        state = model.init_state(len(first), count)
        for _ in range(count):
            x, state = model.features(Signal(values[:, None]), state)
            drawn, values = draw(model.head(x)[:, 0])
            vectors.append(drawn)
    return torch.stack(vectors, 1)
