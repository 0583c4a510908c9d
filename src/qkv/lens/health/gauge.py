"""Measurement of a training step: gradients and updates of each layer, and now and then the values inside the model."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from qkv.data.batching.batch import Batch
from qkv.layers.observable import list_points
from qkv.lens.health.probe import key, probe
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.system.errors import UserError
from qkv.tasks.task import Task

GRADIENT, RATIO = "gradient", "ratio"
"""Quantities: norm of a layer's gradient before clipping; ‖ΔW‖ / ‖W‖ of the layer's matrices in one update."""
SHARE = 0.02
"""Maximum share of the training time that measurements take."""
_RECORDS = 100
"""Approximate maximum number of records of a run."""
_SAMPLED = 1 << 14
"""Number of values of a matrix from which the size of its update is estimated."""


class Gauge:
    """Meter of a model during training. A step is measured if it is due and the measurements, this one included, take
    at most ``SHARE`` of the time so far, half for gradients and updates and half for passes that look inside the model;
    gradients and updates of the first step always are measured.

    ``begin`` decides, ``gradients`` and ``updating`` measure within the step, ``end`` returns the record. Nothing that
    is measured changes the training: weights and random numbers are those of a run without a gauge.
    """

    def __init__(self, model: Transformer, task: Task, parameters: Mapping[Tensor, str], number_format: str):
        """``parameters``: name of each trained parameter.   ``number_format``: precision of training."""
        self.model, self.task, self.number_format = model, task, number_format
        self._layers = layers_of(model, parameters)
        self._last, self._spent, self._cost = 0, 0.0, 0.0
        self._inside_spent, self._inside_cost = 0.0, 0.0
        self._values: dict[str, Tensor] | None = None
        self._inside = False

    def begin(self, step: int, steps: int, seconds: float) -> None:
        """Decide whether update number ``step`` of ``steps`` is measured, ``seconds`` after training began."""
        half = SHARE / 2 * seconds
        measures = not self._last or (step - self._last >= steps // _RECORDS and self._spent + self._cost <= half)
        # Before the first time, a pass is assumed to take as long as a step.
        self._inside = measures and 0 < self._inside_spent + (self._inside_cost or seconds / step) <= half
        self._values = {} if measures else None
        self._last = step if measures else self._last
        self._used = 0.0

    @torch.no_grad()
    def gradients(self) -> None:
        """Measure the gradients of a step, before they are clipped."""
        if self._values is None:
            return
        began = time.perf_counter()
        for place, parameters in self._layers.items():
            gradients = [p.grad for p in parameters if p.grad is not None]
            self._values[key(GRADIENT, place)] = at_least_single(get_total_norm(gradients))
        self._used += time.perf_counter() - began

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Return a context manager around the update of the weights that measures its size."""
        if self._values is None:
            yield
            return
        began = time.perf_counter()
        before = {place: [_sample(p) for p in some if p.dim() > 1] for place, some in self._layers.items()}
        self._used += time.perf_counter() - began
        yield
        began = time.perf_counter()
        for place, samples in before.items():
            after = [_sample(p) for p in self._layers[place] if p.dim() > 1]
            if after:
                old, new = torch.cat(samples), torch.cat(after)
                self._values[key(RATIO, place)] = (new - old).norm() / old.norm().clamp(min=1e-30)
        self._used += time.perf_counter() - began

    def end(self, batches: Sequence[Batch]) -> dict[str, float] | None:
        """Return the record of the step, with the values inside the model on the first of ``batches``; None if the
        step is not measured.
        """
        if self._values is None:
            return None
        began, values, self._values = time.perf_counter(), self._values, None
        numbers = torch.stack([value.to(self.model.device) for value in values.values()]).tolist() if values else []
        record = dict(zip(values, numbers, strict=True))
        self._cost = self._used + time.perf_counter() - began
        self._spent += self._cost
        return {**record, **self._look(batches)} if self._inside else record

    def _look(self, batches: Sequence[Batch]) -> dict[str, float]:
        began = time.perf_counter()
        try:
            with torch.random.fork_rng(devices=()):
                inside = probe(self.model, self.task, batches[:1], self.number_format)
        except (UserError, RuntimeError):  # a measurement, for which memory may be short, ends no training
            self._inside_cost = math.inf
            return {}
        self._inside_cost = time.perf_counter() - began
        self._inside_spent += self._inside_cost
        return inside


def layers_of(model: Transformer, parameters: Mapping[Tensor, str]) -> dict[str, list[Tensor]]:
    """Group ``parameters``, tensor -> name, by layer: a branch with its norms, or else the outermost module."""
    branches = {path.rpartition(".")[0] for path in list_points(model) if path.endswith(".residual_after")}
    layers: dict[str, list[Tensor]] = {}
    for parameter, name in parameters.items():
        steps = name.split(".")
        prefixes = (".".join(steps[:i]) for i in range(len(steps), 0, -1))
        place = next((prefix for prefix in prefixes if prefix in branches), steps[0])
        layers.setdefault(place, []).append(parameter)
    return layers


def _sample(p: Tensor) -> Tensor:
    """Copy evenly spaced values of a parameter, as a vector."""
    flat = p.detach().reshape(-1)
    return at_least_single(flat[:: -(-len(flat) // _SAMPLED)]).clone()
