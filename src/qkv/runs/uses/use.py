"""Uses of a model besides the task of its head: labels by entailment, languages, settings, entities, no answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from qkv.runs.run import Run
from qkv.runs.uses.answers import MaybeAnswers
from qkv.runs.uses.entities import Entities
from qkv.runs.uses.text_to_text import TextToText
from qkv.runs.uses.zero_shot import ZeroShot
from qkv.system.errors import UserError


class Use(Protocol):
    """Way to predict with a run."""

    def predict(self, run: Run, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Predict for each row of inputs; see ``qkv.tasks.task.Task.predict``. Raises ``UserError``."""
        ...


def use_of(
    labels: Sequence[str] | None = None,
    hypothesis: str | None = None,
    multi_label: bool = False,
    source_language: str | None = None,
    target_language: str | None = None,
    task: str | None = None,
    group: str | None = None,
    no_answer: bool = False,
) -> Use | None:
    """Return the use that the options of a prediction ask for; None without any of them.

    labels, hypothesis, multi_label: see ``ZeroShot``.   source_language, target_language, task: see ``TextToText``.
    group: see ``Entities``.   no_answer: see ``MaybeAnswers``.

    Raises ``UserError`` for options that do not fit together.
    """
    if labels is None and (hypothesis is not None or multi_label):
        raise UserError("'hypothesis' and 'multi_label' need 'labels'")
    writes = source_language is not None or target_language is not None or task is not None
    if (labels is not None) + writes + (group is not None) + no_answer > 1:
        sentence = "give either labels, or languages and a task, or a grouping of entities, or no_answer"
        raise UserError(f"{sentence}: no model has two of them")
    if labels is not None:
        return ZeroShot(tuple(labels), hypothesis, multi_label)
    if group is not None:
        return Entities(group)
    if no_answer:
        return MaybeAnswers()
    return TextToText(source_language, target_language, task) if writes else None
