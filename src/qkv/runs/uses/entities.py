"""Named entities with their scores, from the probabilities of tags at every token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qkv.runs.run import Run, task_of
from qkv.system.errors import UserError, nearest
from qkv.tasks.words.entity_groups import GROUPINGS
from qkv.tasks.words.token_classification import TokenClassificationTask


@dataclass(frozen=True)
class Entities:
    """Way to group tokens to entities: see ``qkv.tasks.words.entity_groups``. Raises ``UserError`` for another one."""

    grouping: str

    def __post_init__(self) -> None:
        if self.grouping not in GROUPINGS:
            raise UserError(f"there is no grouping {self.grouping!r}; {nearest(self.grouping, GROUPINGS)}")

    def predict(self, run: Run, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Find the entities of the text of each row. Raises ``UserError`` for a run that tags no texts by the
        probabilities of its tokens, and for a row that is no text.
        """
        task = task_of(run)
        if not task.finds_entities or not run.vocabulary.has_text or run.model.spec.head.kind != "tokens":
            sentence = "a grouping of entities is for models that score the tags of tokens"
            raise UserError(f"{sentence}; {run.folder} has the task {run.recipe.task.kind!r}")
        assert isinstance(task, TokenClassificationTask)
        texts = [row["words"] for row in rows]
        wrong = next((text for text in texts if not isinstance(text, str) or not text.strip()), None)
        if wrong is not None:
            raise UserError(f"words: {wrong!r} is not a text, of which tokens can be grouped")
        return task.grouped(run.model, run.vocabulary, run.recipe, texts, self.grouping)
