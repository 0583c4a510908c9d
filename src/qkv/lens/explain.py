"""Influence of each word on one answer: the change of the answer when the word is left out ("erasure", Li et al.
2016).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qkv.runs.inference.predict import predict
from qkv.runs.run import Run, task_of
from qkv.system.errors import UserError

MOST_WORDS = 1000
"""Maximum number of words of an input that are left out in turn, counted from its beginning."""
_TINY = 1e-300


class _Piece(NamedTuple):
    """Word in the text of the input ``role``, at the characters [begin, end), including the white space after it."""

    role: str
    word: str
    begin: int
    end: int


def explain(run: Run, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Predict the answer for each row of inputs, with ``words``: the change of the answer when each word is left out.

    An entry of ``words`` has ``word``, ``input`` (such as "text") and ``change``: log p(answer | text without the word)
    - log p(answer | text). Words that support the answer have negative changes. If the answer is a number, ``change``
    is the difference of the values. If the answer has several labels, ``change`` refers to the most probable label,
    which is stored as ``explained``. A text without white space is split into characters.

    Raises ``UserError`` for a task whose answers are neither labels with probabilities nor numbers, and for an input of
    a single word.
    """
    return [_explained(run, row) for row in rows]


def _explained(run: Run, row: dict[str, Any]) -> dict[str, Any]:
    task = task_of(run)
    if task.processor is not None:
        raise UserError(f"the influence of words is only defined for texts, but this run reads {task.processor.kind}")
    roles = [role for role in (*task.asks, *task.may_ask) if isinstance(row.get(role), str)]
    pieces = [piece for role in roles for piece in _pieces(role, row[role])]
    if len(pieces) < 2:
        raise UserError("the input has a single word; the influence of words needs at least two")
    answer, *changed_answers = predict(run, [row, *(_without(row, piece) for piece in pieces[:MOST_WORDS])])
    label = _label(answer, run)
    before = _score(answer, label)
    words = [
        {"word": piece.word, "input": piece.role, "change": _score(other, label) - before}
        for piece, other in zip(pieces, changed_answers, strict=False)
    ]
    explanation = {**answer, "words": words} | ({"explained": label} if label not in (None, answer["answer"]) else {})
    if len(pieces) > MOST_WORDS:
        explanation["note"] = f"the first {MOST_WORDS:,} of {len(pieces):,} words were left out in turn"
    return explanation


def _pieces(role: str, text: str) -> list[_Piece]:
    pattern = r"\S+\s*" if re.search(r"\S\s+\S", text) else r"\S\s*"
    return [_Piece(role, match[0].strip(), *match.span()) for match in re.finditer(pattern, text)]


def _without(row: Mapping[str, Any], piece: _Piece) -> dict[str, Any]:
    text = row[piece.role]
    return {**row, piece.role: (text[: piece.begin] + text[piece.end :]).rstrip()}


def _label(answer: Mapping[str, Any], run: Run) -> str | None:
    """Return the label whose probability is compared; None if the answer is a number. Raises ``UserError`` for other
    answers.
    """
    chances: Mapping[str, float] | None = answer.get("probabilities")
    if chances:
        return answer["answer"] if answer["answer"] in chances else max(chances, key=chances.__getitem__)
    if isinstance(answer.get("value"), float):
        return None
    raise UserError(
        f"the influence of words is only defined for predictions of labels and numbers, but the task "
        f"{run.recipe.task.kind!r} predicts neither"
    )


def _score(answer: Mapping[str, Any], label: str | None) -> float:
    return float(answer["value"]) if label is None else math.log(max(answer["probabilities"][label], _TINY))
