"""Measure the quantities that ``qkv.costs.cost`` estimates."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from qkv.costs.cost import Cost
from qkv.costs.counting.counted import HERE
from qkv.costs.counting.losses import SummedLoss, backward, memory_of, random_batch
from qkv.costs.counting.memory import LiveBytes
from qkv.costs.measuring.machine import Machine, usable_memory
from qkv.data.batching.batch import Batch
from qkv.models.build import build
from qkv.models.state import State
from qkv.models.transformer import Transformer
from qkv.ops.selection.choices import references
from qkv.state.tree import nbytes
from qkv.system.errors import UserError

_DECODED = 16
"""Number of decoded tokens that are timed."""


class OptimizerLike(Protocol):
    """Interface of the optimiser in a training step."""

    def step(self) -> None: ...
    def zero_grad(self) -> None: ...
    def state_dict(self) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True)
class Update:
    """Training step: ``accumulate`` forward and backward passes over a batch, then an optimiser step.

    precision: "fp32", or "bf16" for autocast, even if the processor emulates it.
    """

    model: Transformer
    loss: SummedLoss
    optimizer: OptimizerLike
    accumulate: int = 1
    precision: str = "fp32"

    def __call__(self, batch: Batch) -> None:
        precision = torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bf16")
        backward(self.model, self.loss, [batch] * self.accumulate, batch.num_targets * self.accumulate, precision)
        self.optimizer.step()
        self.optimizer.zero_grad()


@dataclass(frozen=True)
class Measurement:
    """One quantity, as predicted and as measured."""

    quantity: str
    unit: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative error (predicted - measured) / measured."""
        return (self.predicted - self.measured) / self.measured if self.measured else float(self.predicted != 0)


def check(cost: Cost, update_of: Callable[[Transformer], Update], machine: Machine | None = None) -> list[Measurement]:
    """Build the model of ``cost`` and compare estimates with measurements; with ``machine`` also tokens per second.

    ``update_of``: function that creates the training step of a model. Memory is estimated for the attention
    implementations that this machine selects. Raises ``UserError`` if a training step does not fit into memory.
    """
    _fits(cost)
    model = build(cost.model)
    update, batch = update_of(model), random_batch(model, cost)
    # One step fills the optimiser's state and lets every operation choose its path.
    update(batch)
    model.recompute_blocks(cost.training.recompute)
    memory = cost.at(attention=HERE, irregular=HERE).memory
    forward, training = count_flops(cost)
    rows = [
        Measurement("parameters", "", cost.parameters, sum(p.numel() for p in model.parameters())),
        Measurement("FLOPs, forward", "FLOP", cost.forward_flops, forward),
        Measurement("FLOPs, training step", "FLOP", cost.train_flops, training),
        Measurement("peak memory, training step", "B", memory.peak, peak_bytes(update, batch)),
    ]
    if machine:
        per_update = cost.training.accumulate * cost.tokens
        rows.append(
            Measurement("training", "tokens/s", cost.speed(machine).train, per_update / seconds(lambda: update(batch)))
        )
    return rows + _decoding(cost, machine, model, batch) if cost.writes else rows


def _fits(cost: Cost) -> None:
    most = usable_memory()
    if most is not None and cost.memory.peak > 0.9 * most:
        needed, there = cost.memory.peak / 1e9, most / 1e9
        raise UserError(
            f"a training step needs about {needed:,.1f} GB, but this machine has {there:,.1f} GB; "
            "use a smaller batch, length or width"
        )


def count_flops(cost: Cost) -> tuple[int, int]:
    """Return the FLOPs of (a forward pass, a training step) by torch's FLOP counter.

    They are counted on the meta device with the reference implementation of attention, which computes full score
    matrices with operators that the counter supports, equally on every machine.
    """
    with torch.device("meta"):
        model = build(cost.model)
    batch = random_batch(model, cost).to("meta")
    model.recompute_blocks(cost.training.recompute)
    with references(), torch.device("meta"):
        with FlopCounterMode(display=False) as forward, torch.no_grad():
            model(batch.input, memory=memory_of(model, batch))
        with FlopCounterMode(display=False) as training:
            answer, _ = model(batch.input, memory=memory_of(model, batch))
            answer.sum().backward()
    return forward.get_total_flops(), cost.training.accumulate * training.get_total_flops()


def peak_bytes(update: Update, batch: Batch) -> int:
    """Measure the peak bytes of live tensors during a training step, including weights and optimiser state."""
    model = update.model
    inputs = [batch.targets, *(signal.values for signal in batch.signals.values())]
    with LiveBytes([*model.parameters(), *model.buffers(), *update.optimizer.state_dict().values(), *inputs]) as memory:
        update(batch)
    return memory.peak


def _decoding(cost: Cost, machine: Machine | None, model: Transformer, batch: Batch) -> list[Measurement]:
    model.eval()
    if cost.precision == "bf16":
        model.to(torch.bfloat16)
    rows = [Measurement("decoding state", "B", cost.state_bytes(), nbytes(_started(model, batch)))]
    if machine is None:
        return rows
    speed = cost.speed(machine)
    prefill, decode = rates(model, batch)
    return [
        *rows,
        Measurement("prefill", "tokens/s", speed.prefill, prefill),
        Measurement("decoding", "tokens/s", speed.decode, decode),
    ]


def rates(model: Transformer, batch: Batch) -> tuple[float, float]:
    """Measure the tokens per second of (prefill of ``batch``, decoding of its last positions). ``model`` must be in
    eval mode.
    """
    with torch.inference_mode():
        reading = model.frontend.computed(batch.input) / seconds(lambda: model(batch.input, _started(model, batch)))
        return reading, batch.input.num_rows / _step_seconds(model, batch)


def _started(model: Transformer, batch: Batch) -> State:
    """Build the initial decoding state for the batch; its sources, if any, are encoded."""
    rows, length = batch.input.values.shape[:2]
    with torch.no_grad():
        return model.init_state(rows, length, memory_of(model, batch))


def _step_seconds(model: Transformer, batch: Batch) -> float:
    """Measure the median seconds to decode one token per row, over the last positions of the batch."""
    ids, state = batch.input.values, _started(model, batch)
    first = max(ids.shape[1] - _DECODED, 0)
    times = []
    for start, stop in [(0, first), *((i, i + 1) for i in range(first, ids.shape[1]))]:
        began = time.perf_counter()
        _, state = model(ids[:, start:stop], state)
        times.append(time.perf_counter() - began)
    return _median(times[1:])


def seconds(work: Callable[[], object], budget: float = 2.0, most: int = 20) -> float:
    """Measure the median seconds of ``work`` after one warm-up run, over 3 to ``most`` runs in about ``budget``
    seconds.
    """
    work()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 3 or (len(times) < most and time.perf_counter() - began < budget):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return _median(times)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
