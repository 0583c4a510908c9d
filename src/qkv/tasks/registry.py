"""Builders of tasks from their specs."""

from __future__ import annotations

from typing import Any

from qkv.spec.data import NO_DATA, Data
from qkv.spec.recipe import Recipe
from qkv.spec.register import implementation, implementations
from qkv.spec.tasks import Task as TaskSpec
from qkv.tasks.task import Task

PACKAGE = "qkv.tasks"
"""Package of the implementations of tasks."""


def build_task(spec: TaskSpec, data: Data = NO_DATA) -> Task:
    """Build the task that implements a task spec, for the kind of input that ``data`` has; by default text."""
    return implementation(spec, PACKAGE, of=data.processor)(spec).reading(data)


def task_of_recipe(recipe: Recipe) -> Task:
    """Build the task of a recipe, for the kind of input that its data has."""
    return build_task(recipe.task, recipe.data)


def tasks() -> dict[type[TaskSpec], Any]:
    """Return the implementation of every task that a recipe can name, by spec class."""
    return implementations(TaskSpec, PACKAGE)
