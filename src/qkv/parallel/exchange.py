"""Sums of tensors over all processes of a run, in few collectives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.distributed import all_reduce

BUCKET = 1 << 23
"""Number of elements of a collective; larger ones are not faster, and each needs a copy."""


def sum_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace the gradient of each parameter by its sum over all processes.

    A process without a gradient adds 0; where no process has one, there is none afterwards, as in one process. Whether
    a process has one travels behind the values.
    """
    for bucket in buckets(parameters):
        _sum_bucket(bucket)


def buckets(parameters: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the parameters in groups of one dtype and of up to ``BUCKET`` elements, or one parameter."""
    bucket, size = list[Tensor](), 0
    for p in sorted(parameters, key=lambda p: str(p.dtype)):
        if bucket and (size + p.numel() > BUCKET or p.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(p)
        size += p.numel()
    if bucket:
        yield bucket


def _sum_bucket(parameters: Sequence[Tensor]) -> None:
    values = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    present = values[0].new_tensor([p.grad is not None for p in parameters])
    flat = torch.cat([*(value.flatten() for value in values), present])
    all_reduce(flat)
    *sums, counts = flat.split([p.numel() for p in parameters] + [len(parameters)])
    for p, total, count in zip(parameters, sums, counts.tolist(), strict=True):
        p.grad = total.view_as(p).clone() if count else None


def sum_tensors(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over all processes, in place."""
    for tensor in tensors:
        all_reduce(tensor)
