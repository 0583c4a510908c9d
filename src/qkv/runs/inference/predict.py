"""Predictions of a run for rows of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qkv.data.records.sounds.cells import is_sound_in_memory
from qkv.runs.inference.inputs import value_columns
from qkv.runs.run import Run, task_of
from qkv.runs.uses.text_to_text import TextToText
from qkv.runs.uses.use import Use
from qkv.system.errors import UserError
from qkv.tasks.task import TablePrediction


def predict(run: Run, rows: Sequence[dict[str, Any]], use: Use | None = None) -> list[dict[str, Any]]:
    """Predict the task's output for each row of inputs; see ``qkv.tasks.task.Task.predict``. An answer gets a ``note``
    if at least half of its input tokens are not in the run's vocabulary. ``use``: what is asked besides the task.
    """
    task = task_of(run)
    if use is None and task.writes_from_source:
        use = TextToText()
    if use is None:
        answers = task.predict(run.model, run.vocabulary, run.recipe, rows)
    else:
        answers = use.predict(run, rows)
    values = value_columns(run)
    for row, answer in zip(rows, answers, strict=True):
        note = _strange(run, [row.get(name) for name in (*task.asks, *task.may_ask) if name not in values])
        if note:
            answer["note"] = "; ".join(filter(None, (answer.get("note"), note)))
    return answers


def _strange(run: Run, values: Sequence[Any]) -> str:
    """Return a warning if at least half of the tokens of the texts in ``values`` are not in the run's vocabulary; else
    "".
    """
    tokenizer = run.vocabulary.tokenizer if run.vocabulary.has_text else None
    if tokenizer is None or tokenizer.unknown_id is None:
        return ""
    joined = (" ".join(map(str, value)) if isinstance(value, list) else value for value in values)
    texts = [text for text in joined if isinstance(text, str) and text]
    if not texts:
        return ""
    ids = tokenizer.encode_many(texts)[0]
    unknown = int((ids == tokenizer.unknown_id).sum())
    if not len(ids) or 2 * unknown < len(ids):
        return ""
    return f"{unknown:,} of {len(ids):,} input tokens are not in the run's vocabulary, so the answer is unreliable"


def predict_table(run: Run, source: str, columns: Mapping[str, str]) -> TablePrediction:
    """Predict from the whole table in the file ``source`` at once; see ``qkv.tasks.task.Task.predict_table``."""
    return task_of(run).predict_table(run.model, run.vocabulary, run.recipe, source, columns)


def rows_for(run: Run, inputs: Sequence[Any]) -> list[dict[str, Any]]:
    """Convert ``inputs`` to rows for ``predict``. Each input is a mapping, which is used as it is, or the value of the
    task's only input; a cell that it lacks is empty. Raises ``UserError``.
    """
    asks = task_of(run).asks
    empty = {name: None for name, processor in value_columns(run).items() if processor.spec.of_cells}
    return [_row_for({**empty, **entry} if empty else entry, asks, run.recipe.task.kind) for entry in inputs]


def _row_for(entry: Any, asks: tuple[str, ...], kind: str) -> dict[str, Any]:
    single = not isinstance(entry, dict) or is_sound_in_memory(entry)
    row = {asks[0]: entry} if asks and single else entry
    missing = [name for name in asks if not isinstance(row, dict) or name not in row]
    if missing:
        raise UserError(f"the task {kind!r} predicts from {', '.join(asks)}; {missing[0]!r} is missing")
    return row
