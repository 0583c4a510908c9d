"""Building of tasks."""

from __future__ import annotations

from typing import Any

from qkv.spec.register import implementation, implementations
from qkv.spec.tasks import Task as TaskSpec
from qkv.tasks.task import Task


def build_task(spec: TaskSpec) -> Task:
    """The task of a recipe."""
    return implementation(spec, "qkv.tasks")(spec)


def tasks() -> dict[type[TaskSpec], Any]:
    """Every task that a recipe can name, by the type of its spec."""
    return implementations(TaskSpec, "qkv.tasks")
