"""Single branches with all of their weights drawn at random, applied to whole sequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkv.layers.context import Context
from qkv.mixers.registry import build_branch
from qkv.spec.branches import Branch
from qkv.state.arrival import Arrival, Counts

WIDTH = 12


def built(part: Branch, width: int = WIDTH, dtype: torch.dtype = torch.float64) -> Any:
    branch = build_branch(part, width).to(dtype)
    generator = torch.Generator().manual_seed(2)
    for parameter in branch.parameters():
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = (values * parameter.shape[-1] ** -0.5).to(dtype)
    return branch


def some(batch: int = 2, length: int = 7, width: int = WIDTH, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, length, width, generator=torch.Generator().manual_seed(length), dtype=torch.float64).to(
        dtype
    )


def applied(branch: Any, x: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
    positions = torch.arange(x.shape[1])[None]
    if segments is not None:
        positions = torch.tensor([[row[:i].count(row[i]) for i in range(len(row))] for row in segments.tolist()])
    return branch(x, Context(positions, lengths, segments))[0]


def following(past: int, count: int, rows: int, **fields: Any) -> Context:
    """Context of ``count`` positions after ``past``, the same in all rows, with a state."""
    arrival = Arrival(Counts((past,) * rows), count)
    return Context(arrival.positions, arrival=arrival, **fields)
