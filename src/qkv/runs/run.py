"""Trained run: its model, recipe, vocabulary and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.data.vocabulary import Vocabulary
from qkv.models.transformer import Transformer
from qkv.models.wide import WidePath, num_parameters
from qkv.report.fragment import run_fragment
from qkv.report.training import TrainingRun
from qkv.runs.inference.calibration import read_temperature
from qkv.runs.storage.evaluation_file import read_evaluation
from qkv.spec.recipe import Recipe
from qkv.tasks.registry import task_of_recipe
from qkv.tasks.task import Task
from qkv.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, repr=False)
class Run:
    """Trained run, loaded from its folder. ``model`` has the best weights, by held-out loss or the metric that the
    recipe names; ``step`` is the step of these weights. ``ignored``: (key, reason) of each setting in a published
    folder that was not used. ``wide``: the linear path beside the model, which ``task_of`` joins with it; None if the
    run has none.
    """

    folder: Path
    recipe: Recipe
    model: Transformer
    vocabulary: Vocabulary
    metrics: list[dict[str, Any]]
    step: int
    ignored: tuple[tuple[str, str], ...] = ()
    wide: WidePath | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the text that the model generates, or of its input if it generates no text."""
        return self.vocabulary.target

    @property
    def num_parameters(self) -> int:
        """Number of parameters of the model and of the wide path."""
        return num_parameters(self.model, self.wide)

    @property
    def val_loss(self) -> float | None:
        """Held-out loss of ``model``, as measured during training; None if not measured."""
        return next(
            (row["val_loss"] for row in reversed(self.metrics) if row.get("step") == self.step and "val_loss" in row),
            None,
        )

    @property
    def temperature(self) -> float:
        """Temperature of the probabilities of these weights, fitted after training; 1 if none was fitted."""
        return read_temperature(self.folder, self.step)

    @property
    def evaluation(self) -> dict[str, Any] | None:
        """Stored final evaluation of these weights; None if missing. ``step``, and for each split ``figures``
        (metrics), ``sections`` and ``notes``.
        """
        return read_evaluation(self.folder, self.step)

    def __repr__(self) -> str:
        """Short line: folder, task, parameters and step."""
        task = f"task {self.recipe.task.kind}"
        return f"Run({str(self.folder)!r}, {task}, {self.num_parameters:,} parameters, step {self.step:,})"

    def _repr_html_(self) -> str:
        """HTML for notebooks: key figures, loss, evaluation, and the location of the report."""
        figures = {"parameters": float(self.num_parameters)}
        report = (self.folder / "report.html").is_file()
        return run_fragment(
            TrainingRun(
                name=f"{self.folder}, step {self.step:,}",
                description=self.recipe.description,
                metrics=self.metrics,
                folder=str(self.folder) if report else "",
                figures=figures,
                loss_unit=task_of(self).loss_unit,
                best=self.recipe.training.validation.best,
                evaluation=self.evaluation,
            )
        )


def task_of(run: Run) -> Task:
    """Return the task that ``run`` was trained for, with its settings, its wide path and the temperature of its
    probabilities.
    """
    task = task_of_recipe(run.recipe)
    task.temperature, task.wide = run.temperature, run.wide
    return task
