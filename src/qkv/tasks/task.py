"""What every task offers, and how it joins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Tensor

from qkv.data.batch import Batch
from qkv.layers.context import Tap
from qkv.spec.recipe import Task as TaskSpec


class Scale(NamedTuple):
    """How much text a token of a corpus stands for, on average."""

    characters_per_token: float
    bytes_per_token: float


class Task(Protocol):
    """What is learned: a loss, and the figures that people compare."""

    def loss(self, model: Any, batch: Batch, tap: Tap | None = None) -> tuple[Tensor, int]:
        """(the summed loss, how many targets it is over)."""
        ...

    def metrics(self, nats: float, count: int, scale: Scale) -> dict[str, float]:
        """Figures from a summed loss; ``loss`` is among them."""
        ...


C = TypeVar("C", bound=Callable[[Any], Task])
TASKS: dict[type[TaskSpec], Callable[[Any], Task]] = {}


def register(spec: type[TaskSpec]) -> Callable[[C], C]:
    """Class decorator: the task that ``spec`` stands for, called with the spec."""

    def keep(task: C) -> C:
        TASKS[spec] = task
        return task

    return keep
