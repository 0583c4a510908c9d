"""Verbs of ``qkv train``, such as ``classify``: short names of the tasks on tables, with the columns that they need."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from qkv.spec.data import Data
from qkv.spec.processors import processor_roles
from qkv.system.errors import UserError, nearest


class Verb(NamedTuple):
    """Verb of ``qkv train VERB`` and ``qkv.train(…, task=VERB)``.

    task: kind of the task.   named: option -> role of the column that the option names.   settings: other option ->
    recipe field that the option sets.   tunes: True if published models can be fine-tuned for the task.   signals: True
    if the input may be a text, a pair of texts, or values of any processor.   written: kind of task that goes on with a
    start whose decoder writes the answers.   joins: True if several inputs may be read together.
    """

    task: str
    named: Mapping[str, str]
    settings: Mapping[str, str] = MappingProxyType({})
    tunes: bool = True
    signals: bool = False
    written: str = ""
    joins: bool = False

    @property
    def columns(self) -> dict[str, str]:
        """Option -> role of the column that the option names: inputs of all registered processors, then the columns of
        the task.
        """
        inputs = (*_TEXTS, *processor_roles(), *((CELLS,) if self.joins else ())) if self.signals else ()
        return {**{name: name for name in inputs}, **self.named}


_TEXTS = ("text", "pair")
CELLS = "cells"
"""Option that names columns of numbers and categories."""
VERBS = {
    "classify": Verb("classification", {"label": "label"}, signals=True, joins=True),
    "multilabel": Verb("multilabel", {"labels": "labels"}, signals=True, joins=True),
    "regress": Verb("regression", {"value": "value"}, signals=True, joins=True),
    "transcribe": Verb(
        "transcription", {"transcript": "transcript", "speaker": "speaker"}, signals=True, written="speech_to_text"
    ),
    "tag": Verb("token_classification", {"words": "words", "tags": "tags"}),
    "answer": Verb("question_answering", {"question": "question", "context": "context", "answers": "answers"}),
    "translate": Verb("translation", {"source": "source", "target": "target"}),
    "forecast": Verb(
        "forecasting",
        {"time": "time", "value": "value", "series": "series", "known": "known"},
        MappingProxyType({"horizon": "task.horizon"}),
        tunes=False,
    ),
    "edges": Verb("edge_prediction", {"source": "source", "target": "target"}, tunes=False),
    "summarize": Verb("summarization", {"text": "source", "summary": "target"}),
    "caption": Verb("captioning", {"image": "image", "sound": "sound", "series": "series", "caption": "target"}),
    "match": Verb("matching", {name: name for name in ("image", "sound", "series", "text")}, tunes=False),
    "compress": Verb("autoencoding", {"sound": "sound"}, tunes=False),
    "speak": Verb(
        "speech",
        {name: name for name in ("text", "sound", "voice")},
        MappingProxyType({"codec": "data.processor.run"}),
        tunes=False,
    ),
    "chat": Verb(
        "chat",
        {name: name for name in ("messages", "prompt", "completion", "system", "tools")},
        MappingProxyType({"learn": "task.learn", "chat_template": "task.chat_template"}),
    ),
    "prefer": Verb(
        "preference",
        {name: name for name in ("prompt", "chosen", "rejected", "completion", "label", "system", "tools")},
        MappingProxyType({"loss": "task.loss", "chat_template": "task.chat_template"}),
    ),
}


def task_named(task: str) -> str:
    """Return the kind of task that a verb or a kind names; unknown names are returned unchanged."""
    return VERBS[task].task if task in VERBS else task


def tunes(kind: str) -> bool:
    """Return True if published models can be fine-tuned for this kind of task with its verb; False without a verb."""
    return any(verb.tunes for verb in VERBS.values() if kind in (verb.task, verb.written))


def reads_any_signal(kind: str) -> bool:
    """Return True if the verb for this kind of task reads values of any processor; False without a verb."""
    return any(verb.signals for verb in VERBS.values() if kind in (verb.task, verb.written))


def task_written(kind: str) -> str:
    """Return the kind of task that goes on with a start whose decoder writes the answers of ``kind``; empty if none."""
    return next((verb.written for verb in VERBS.values() if verb.task == kind), "")


def split_settings(task: str, arguments: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Split arguments such as ``horizon=14`` into (overrides of the recipe, all other arguments); ``task``: verb or
    kind.
    """
    kind = task_named(task)
    settings = next((verb.settings for verb in VERBS.values() if verb.task == kind), {})
    chosen = [
        f"{settings[name]}={value}" for name, value in arguments.items() if name in settings and value is not None
    ]
    return chosen, {name: value for name, value in arguments.items() if name not in settings}


def data_fields(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``qkv.spec.data.Data`` that the arguments set. An argument may also name the column of a
    role, such as ``label="stars"``.

    ``task``: a verb or the kind of a task. Raises ``UserError`` for an argument that is neither a field nor a role.
    """
    kind = task_named(task)
    verb = next((verb for verb in VERBS.values() if verb.task == kind), Verb(kind, {}))
    fields, columns = {}, dict(arguments.get("columns") or {})
    for name, value in arguments.items():
        if name in Data.model_fields and name != "source":
            fields[name] = value
            continue
        if verb.columns and name not in verb.columns:
            names = [*verb.columns, *verb.settings, *(field for field in Data.model_fields if field != "source")]
            raise UserError(f"{name!r} is not an argument of the task {task!r}; {nearest(name, names)}")
        role = verb.columns.get(name, name)
        if role in columns:
            raise UserError(f"the column of {role!r} is named twice, by {name!r} and in 'columns'; omit one of them")
        columns[role] = value
    return {**fields, "columns": columns} if columns else fields
