"""Register of the functions that choose a recipe, each for a task or a kind of signal."""

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
    """Input of the functions that choose a recipe: task, data with the processor of its kind (None for text),
    overrides, machine, and a sentence for the description.
    """

    def __init__(self, task: Task, data: Data, changes: Sequence[str], machine: Machine | None = None, note: str = ""):
        self.task, self.data, self.changes, self._machine, self.note = task, data, changes, machine, note

    @cached_property
    def records(self) -> Records:
        """Examples of the data: for each split, rows that map the task's roles to values. Raises ``UserError``."""
        return open_records(self.data, build_task(self.task, self.data).roles)  # type: ignore[attr-defined]

    @property
    def values(self) -> list[Any]:
        """Values of the training examples that the processor reads."""
        assert self.data.processor is not None
        role = build_processor(self.data.processor).role.name
        return [row[role] for row in self.records.splits["train"]]

    @cached_property
    def machine(self) -> Machine:
        """Machine for which the recipe is chosen; default: this machine."""
        return self._machine or this_machine()


Choice = Callable[[RecipeRequest], Recipe]
"""Function that chooses a recipe; the recipe has no name yet."""

_CHOICES: Register[type[Part], Choice] = Register("qkv.choosing.signals")


def chooses(part: type[Task] | type[Processor]) -> Callable[[Choice], Choice]:
    """Return a decorator that registers a function to choose recipes for the task ``part``, on all kinds of data, or
    for all data that the processor ``part`` reads.
    """

    def register(choice: Choice) -> Choice:
        _CHOICES[part] = choice
        return choice

    return register


def choice_for(part: Task | Processor | None) -> Choice | None:
    """Return the function that chooses a recipe for a task, or for the data of a processor; None if none is
    registered.
    """
    return None if part is None else _CHOICES.find(type(part))


def has_choice(part: type[Part]) -> bool:
    """Return True if a function that chooses recipes is registered for this class of task or processor."""
    return _CHOICES.find(part) is not None
