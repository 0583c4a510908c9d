"""What every task offers, and how it joins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from qkv.data.batch import Batch
from qkv.layers.context import Tap
from qkv.spec.recipe import Task as TaskSpec


class Scale(NamedTuple):
    """How much text a token of a corpus stands for, on average."""

    characters_per_token: float
    bytes_per_token: float


class Task(ABC):
    """What is learned: a loss, and the figures that people compare."""

    @abstractmethod
    def summed_loss(self, model: Any, batch: Batch, tap: Tap | None = None) -> Tensor:
        """The loss, summed over the batch's targets. ``tap`` sees what each branch computes."""

    @abstractmethod
    def metrics(self, nats: float, count: int, scale: Scale) -> dict[str, float]:
        """Figures from a summed loss and the number of its targets; ``loss`` is among them."""

    def loss(self, model: Any, batch: Batch, tap: Tap | None = None) -> tuple[Tensor, int]:
        """(the summed loss, how many targets it is over)."""
        return self.summed_loss(model, batch, tap), batch.num_targets


C = TypeVar("C", bound=Callable[[Any], Task])
TASKS: dict[type[TaskSpec], Callable[[Any], Task]] = {}


def register(spec: type[TaskSpec]) -> Callable[[C], C]:
    """Class decorator: the task that ``spec`` stands for, called with the spec."""

    def keep(task: C) -> C:
        TASKS[spec] = task
        return task

    return keep
