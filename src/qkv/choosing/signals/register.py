"""Register of the functions that choose a recipe for a task or a kind of signal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from qkv.costs.measuring.machine import Machine
from qkv.costs.measuring.probe import this_machine
from qkv.data.processors.processor import build_processor
from qkv.data.records.model import Records
from qkv.data.records.open import open_records
from qkv.spec.base import Part
from qkv.spec.data import Data
from qkv.spec.processors import Processor
from qkv.spec.recipe import Recipe
from qkv.spec.register import Register
from qkv.spec.tasks import Task
from qkv.tasks.registry import build_task


class RecipeRequest:
    """Request for a recipe: task, data with the processor of its kind (None for text), overrides, and machine."""

    def __init__(self, task: Task, data: Data, changes: Sequence[str], machine: Machine | None = None):
        self.task, self.data, self.changes, self._machine = task, data, changes, machine

    @cached_property
    def records(self) -> Records:
        """Examples of the data, as values of the task's roles. Raises ``UserError``."""
        return open_records(self.data, build_task(self.task, self.data).roles)  # type: ignore[attr-defined]

    @property
    def values(self) -> list[Any]:
        """Values of the training examples that the processor reads."""
        assert self.data.processor is not None
        role = build_processor(self.data.processor).role.name
        return [row[role] for row in self.records.splits["train"]]

    @cached_property
    def machine(self) -> Machine:
        """Machine for which the recipe is chosen; default: this one."""
        return self._machine or this_machine()


Choice = Callable[[RecipeRequest], Recipe]
"""Function that chooses a recipe; the recipe has no name yet."""

_CHOICES: Register[type[Part], Choice] = Register("qkv.choosing.signals")


def chooses(part: type[Task] | type[Processor]) -> Callable[[Choice], Choice]:
    """Register the decorated function to choose recipes for the task ``part``, whatever its data, or for data that the
    processor ``part`` reads.
    """

    def register(found: Choice) -> Choice:
        _CHOICES[part] = found
        return found

    return register


def choice_for(part: Task | Processor | None) -> Choice | None:
    """Return the function that chooses a recipe for a task, or for the data of a processor; None if none is
    registered.
    """
    return None if part is None else _CHOICES.find(type(part))


def has_choice(part: type[Part]) -> bool:
    """True if a function chooses recipes for a kind of task or processor."""
    return _CHOICES.find(part) is not None
