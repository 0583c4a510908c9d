"""Specs of tasks on two inputs of different kinds, such as images and texts."""

from __future__ import annotations

from typing import ClassVar

from qkv.spec.errors import Problem
from qkv.spec.model import Model
from qkv.spec.recipes.task import Reads, Task


class Matching(Task, kind="matching"):
    """Matching of two inputs, such as an image and its caption, in one space of vectors (CLIP, Radford et al. 2021).

    Loss: each row of a batch finds the other input of its own among those of all rows, see the head ``matching``. The
    encoder reads the first of ``data.inputs``, the blocks the second. Metrics: recall at 1, 5 and 10, both ways, in %.
    Columns: those of the inputs.
    """

    reads: ClassVar[Reads] = "examples"
    reads_signals: ClassVar[bool] = True
    separates_inputs: ClassVar[bool] = True
    takes_encoder: ClassVar[bool] = True
    head: ClassVar[str] = "matching"

    def model_problems(self, model: Model) -> list[Problem]:
        if model.encoder is None:
            sentence = f"missing; the task {self.kind!r} reads two inputs, the first of them by an encoder"
            return [Problem(("encoder",), sentence)]
        if model.reads_memory:
            sentence = f"the task {self.kind!r} reads its inputs apart, so no branch may read the encoder; leave it out"
            return [Problem(model.first_branch(lambda branch: branch.reads_memory), sentence)]
        return []
