"""``qkv train`` with a verb: a task is learned from data of one's own, and everything else is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from qkv.spec.errors import UserError, nearest


class Verb(NamedTuple):
    """A task by its everyday name; ``columns`` maps options that name a column to the part that it plays."""

    task: str
    columns: Mapping[str, str]


VERBS = {
    "classify": Verb("classification", {"text": "text", "label": "label"}),
    "regress": Verb("regression", {"text": "text", "value": "value"}),
    "tag": Verb("token_classification", {"words": "words", "tags": "tags"}),
    "answer": Verb("question_answering", {"question": "question", "context": "context", "answers": "answers"}),
    "translate": Verb("translation", {"source": "source", "target": "target"}),
    "summarize": Verb("summarization", {"text": "source", "summary": "target"}),
}
TEXTS = ("source", "target")
"""Of ``translate``: two files where there is no ``--data``, else two columns of it."""


def table_of(verb: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the options of ``qkv train VERB`` say of the data: arguments of ``find_recipe``. Raises ``UserError``."""
    given = {name: value for name, value in options.items() if value is not None}
    task, columns = VERBS[verb]
    named = {name: given.pop(name) for name in list(given) if name not in ("data", "validation", "test", "bad_rows")}
    for name in named:
        if name not in columns:
            known = ", ".join(f"--{option}" for option in columns)
            raise UserError(f"--{name} does not go with 'qkv train {verb}', whose columns are named by {known}")
    source = given.pop("data", None)
    if source is None and verb == "translate" and any(name in named for name in TEXTS):
        source = _two_texts(named)
    if source is None:
        texts = ", or --source a.txt --target b.txt" if verb == "translate" else ""
        raise UserError(f"'qkv train {verb}' needs the data that it learns from: --data FILE{texts}")
    if given.get("bad_rows") not in (None, "skip", "refuse"):
        raise UserError(f"--bad-rows: {given['bad_rows']!r} given; {nearest(str(given['bad_rows']), ('skip', 'refuse'))}")
    chosen = {columns[name]: column for name, column in named.items()}
    return {"source": source, "task": task, **given, **({"columns": chosen} if chosen else {})}


def _two_texts(named: dict[str, Any]) -> str:
    for name in TEXTS:
        if name not in named:
            raise UserError(f"--{name} is missing: without --data, --source and --target are two texts, line by line")
    files = [named.pop(name) for name in TEXTS]
    for name, file in zip(TEXTS, files, strict=True):
        if not Path(file).expanduser().is_file():
            raise UserError(f"--{name}: there is no file {file!r}")
    return " | ".join(files)


def refuse_without_verb(recipe: str, options: Mapping[str, Any]) -> None:
    """Raise ``UserError`` if something is said of a table although no verb says what is learned from it."""
    given = next((name for name, value in options.items() if value is not None), None)
    if given:
        raise UserError(
            f"--{given.replace('_', '-')} goes with a verb in the place of {recipe!r}: {', '.join(VERBS)}; "
            "as in: qkv train classify --data mine.csv"
        )
