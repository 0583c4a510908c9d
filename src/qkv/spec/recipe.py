"""A trained system as one file: model, data, task, training, and the result that was reached."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from qkv.spec.base import Part, Seq, Spec
from qkv.spec.data import Data
from qkv.spec.errors import Problem
from qkv.spec.generation import Generation
from qkv.spec.model import Model
from qkv.spec.training import Training


class Task(Part, slot=True):
    """What is learned."""

    @property
    def needs_causal(self) -> bool:
        """True if the model must decode."""
        return False


class NextToken(Task, kind="next_token"):
    """Language modelling: -Σ log p(x_i | x_<i)."""

    @property
    def needs_causal(self) -> bool:
        return True


class Result(Spec):
    """A figure that the recipe reached, beside the published one."""

    metric: str
    value: float
    spread: float | None = Field(default=None, description="largest minus smallest over the seeds")
    seeds: Seq[int] = ()
    minutes: float | None = None
    machine: str = ""
    date: str = ""
    published: float | None = None
    source: str = Field(default="", description="whose figure the published one is")
    note: str = ""


class Recipe(Spec):
    """Everything that decides a run. ``quick`` holds dotted overrides for a short form of it."""

    name: str = ""
    description: str = ""
    data: Data
    model: Model = Model()
    task: Task = NextToken()
    training: Training = Training()
    sample: Generation = Generation(max_new_tokens=200, temperature=0.8, seed=1)
    quick: dict[str, Any] = {}
    results: Seq[Result] = ()

    def problems(self) -> list[Problem]:
        if self.task.needs_causal and not self.model.causal:
            path = self.model.first_branch(lambda branch: not branch.causal)
            return [
                Problem(
                    ("model", *path),
                    f"this branch sees later positions, and the task {self.task.kind!r} asks for a model that decodes; use a causal mask",
                )
            ]
        return []
