"""Building tasks from their specs."""

from __future__ import annotations

from typing import Any

from qkv.spec.register import implementation, implementations
from qkv.spec.tasks import Task as TaskSpec
from qkv.tasks.task import Task


def build_task(spec: TaskSpec) -> Task:
    """Build the task that implements a recipe's task spec."""
    return implementation(spec, "qkv.tasks")(spec)


def tasks() -> dict[type[TaskSpec], Any]:
    """Implementation of every task that a recipe can name, by spec class."""
    return implementations(TaskSpec, "qkv.tasks")
