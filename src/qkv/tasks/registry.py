"""Every task that a recipe can name. Importing this module is what registers the ones that qkv brings."""

from __future__ import annotations

from qkv.spec.tasks import Task as TaskSpec
from qkv.tasks import (
    classification,
    denoising,
    masked_tokens,
    next_token,
    permutation,
    question_answering,
    recall,
    regression,
    sequence_to_sequence,
    sorting,
    span_corruption,
    token_classification,
    word_vectors,
)
from qkv.tasks.task import TASKS, Task

__all__ = ["TASKS", "build_task"]

BUILT_IN = (
    classification,
    denoising,
    masked_tokens,
    next_token,
    permutation,
    question_answering,
    recall,
    regression,
    sequence_to_sequence,
    sorting,
    span_corruption,
    token_classification,
    word_vectors,
)


def build_task(spec: TaskSpec) -> Task:
    """The task of a recipe."""
    return TASKS[type(spec)](spec)
