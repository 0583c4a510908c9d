"""Every task that a recipe can name. Importing this module is what registers the ones that qkv brings."""

from __future__ import annotations

from qkv.spec.tasks import Task as TaskSpec
from qkv.tasks import classification, next_token, question_answering, regression, sequence_to_sequence, token_classification
from qkv.tasks.task import TASKS, Task

__all__ = ["TASKS", "build_task"]

BUILT_IN = (classification, next_token, question_answering, regression, sequence_to_sequence, token_classification)


def build_task(spec: TaskSpec) -> Task:
    """The task of a recipe."""
    return TASKS[type(spec)](spec)
