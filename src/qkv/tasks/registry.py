"""Every task that a recipe can name. Importing this module is what registers the ones that qkv brings."""

from __future__ import annotations

from qkv.spec.recipe import Task as TaskSpec
from qkv.tasks import next_token
from qkv.tasks.task import TASKS, Task

__all__ = ["TASKS", "build_task"]

BUILT_IN = (next_token,)


def build_task(spec: TaskSpec) -> Task:
    """The task of a recipe."""
    return TASKS[type(spec)](spec)
