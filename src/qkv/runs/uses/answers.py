"""Answers in a context that may hold none (SQuAD 2, Rajpurkar et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qkv.runs.run import Run, task_of
from qkv.system.errors import UserError


@dataclass(frozen=True)
class MaybeAnswers:
    """Answers of an extractive model of which each may be "no answer": where its score is higher than that of the best
    span in every window. The files of a published model do not say whether it was trained for this.
    """

    def predict(self, run: Run, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Answer each row; see ``qkv.tasks.words.question_answering``. Raises ``UserError`` for another task."""
        task = task_of(run)
        if not task.finds_spans:
            sentence = "only a model that extracts answers from a context can find none"
            raise UserError(f"{sentence}; {run.folder} has the task {run.recipe.task.kind!r}")
        recipe = run.recipe.changed(task=run.recipe.task.changed(no_answer=True))
        return task.predict(run.model, run.vocabulary, recipe, rows)
