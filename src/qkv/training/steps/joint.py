"""Gradient of a loss that couples the rows of several batches, in the memory of one batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.data.batching.batch import Batch
from qkv.models.transformer import Transformer
from qkv.tasks.task import Task
from qkv.training import random_state


def joint_backward(
    model: Transformer, task: Task, batches: Sequence[Batch], count: int, precision: torch.autocast
) -> Tensor:
    """Add the gradient of the mean loss of the rows of all batches together; return the summed loss (Gao et al. 2021).

    The outputs y_i of every batch i are computed without a graph, then the loss L(y_1, …, y_n) and its gradients
    ∂L/∂y_i, and last each batch again, with the same random numbers, from which ∂L/∂y_i flows back. So the gradient is
    that of one large batch, exactly, at the cost of a second forward pass.
    """
    states, rows = list[dict[str, Tensor]](), list[Tensor]()
    for batch in batches:
        states.append(random_state.capture())
        with torch.no_grad(), precision:
            rows.append(task.row_outputs(model, batch))
    outputs = torch.cat(rows).requires_grad_()
    nats = model.head.loss(outputs, torch.cat([batch.targets for batch in batches]))
    (nats / count).backward()
    assert outputs.grad is not None
    for batch, state, gradient in zip(batches, states, outputs.grad.split([len(row) for row in rows]), strict=True):
        random_state.restore(state)
        model.share_losses(batch.num_targets / count)
        with precision:
            again = task.row_outputs(model, batch)
        again.backward(gradient.to(again.dtype))
    return nats.detach()
