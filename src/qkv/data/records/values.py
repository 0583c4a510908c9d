"""Convert column values to role values, or raise ``Unusable`` with the reason why a row cannot be used."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from qkv.data.cells.numbers import NumberForm, is_empty
from qkv.data.records.conversations.contents import with_files
from qkv.data.records.images.pictures import URI as IMAGE_URI
from qkv.data.records.lists import begins_list, printed_list
from qkv.data.records.model import Role
from qkv.data.records.sounds.cells import URI as SOUND_URI
from qkv.data.records.table import Row
from qkv.system.errors import UserError

T = TypeVar("T")
SHOWN = 40
"""Maximum number of characters of a value quoted in a reason."""


class Unusable(Exception):
    """Raised for a row that cannot be used; its message is a reason that completes a sentence."""


def without_repeats(reasons: Sequence[str]) -> list[str]:
    """Return reasons of which only the last says what is allowed, where the next one allows the same."""
    divided = [reason.partition("; allowed: ") for reason in reasons]
    later = [*(allowed for _, _, allowed in divided[1:]), ""]
    return [
        first if allowed and allowed == following else reason
        for reason, (first, _, allowed), following in zip(reasons, divided, later, strict=True)
    ]


class Missing(Unusable):
    """Raised for a row without a value for ``role``, because the cell is empty."""

    def __init__(self, reason: str, role: str):
        super().__init__(reason)
        self.role = role


def readable(read: Callable[[Any], T], values: Iterable[Any], noun: str) -> list[T]:
    """Return the results of ``read`` for the values that can be read; ``noun``: word for a value, such as "image".

    If no value can be read, raises ``UserError`` with the first reason.
    """
    results, reason = list[T](), ""
    for value in values:
        try:
            results.append(read(value))
        except Unusable as error:
            reason = reason or str(error)
    if not results:
        raise UserError(f"no {noun} can be read: {reason}")
    return results


class Values:
    """Converter of a table's rows to examples with one value per role; counts repaired values for ``notes``.

    ``columns``: role -> column; ``extra``: columns kept under their column names; ``missing``: cell texts that mean an
    empty cell; ``separator``: text between two labels of one cell; ``folder``: folder of the table, to which names of
    files of images and sounds are relative; ``forms``: number format by role.
    """

    def __init__(
        self,
        roles: Sequence[Role],
        columns: Mapping[str, str],
        extra: Sequence[str] = (),
        missing: Collection[str] = (),
        separator: str = "",
        folder: Path | None = None,
        forms: Mapping[str, NumberForm] | None = None,
    ):
        self._roles = [role for role in roles if role.name in columns]
        self._columns = columns
        self._extra, self._forms = extra, forms or {}
        self._missing, self._separator, self._folder = missing, separator, folder
        texts = [role.name for role in roles if role.kind == "text"]
        self._context = "context" if "context" in texts else texts[0] if texts else ""
        self._counts: Counter[str] = Counter()

    def __call__(self, row: Row) -> dict[str, Any]:
        """Convert a row to an example: role -> value. Raises ``Unusable``."""
        example: dict[str, Any] = {}
        for role in self._roles:
            if role.kind == "labels":
                example[role.name] = label_set(self._cell(row, role), role.name, self._separator)
            elif role.kind in ("image", "sound"):
                example[role.name] = self._file(self._cell(row, role), role.name)
            elif role.kind == "messages" and self._folder is not None:
                example[role.name] = with_files(self._cell(row, role), self._folder)
            elif role.kind == "number":
                example[role.name] = _number(self._cell(row, role), role.name, self._forms.get(role.name, NumberForm()))
            elif role.kind != "answers":
                cell = self._cell(row, role)
                example[role.name] = CONVERT[role.kind](cell, role.name)
                if role.kind == "label" and isinstance(cell, str) and cell != cell.strip():
                    self._counts["{} labels begin or end with white space, which is removed"] += 1
        for role in self._roles:
            if role.kind == "answers":
                example[role.name] = self._answers(self._cell(row, role), role.name, example.get(self._context, ""))
        self._check(example)
        for name in self._extra:
            if name in row.values:
                example.setdefault(name, row.values[name])
        return example

    def _cell(self, row: Row, role: Role) -> Any:
        """Return the value of the column of ``role``; None if it means an empty cell."""
        value = row.values.get(self._columns[role.name])
        empty = value.strip() in self._missing if isinstance(value, str) else is_nan(value)
        return None if empty else value

    def _file(self, value: Any, name: str) -> Any:
        """Find a file of an image or a sound in the table's folder, else in the working directory; return other values
        unchanged.
        """
        if not isinstance(value, str):
            return _signal(value, name)
        text = _scalar(value, name)
        if text.startswith((IMAGE_URI, SOUND_URI)) or self._folder is None:
            return text
        beside = self._folder / text.strip()
        return str(beside) if beside.exists() else text.strip()

    def notes(self) -> list[str]:
        """Return sentences for the user: how many values were repaired or have white space at their ends."""
        return [sentence.format(f"{count:,}") for sentence, count in self._counts.items()]

    def _check(self, example: dict[str, Any]) -> None:
        lists = [role.name for role in self._roles if role.kind in ("words", "tags")]
        for name in lists[1:]:
            if len(example[name]) != len(example[lists[0]]):
                raise Unusable(f"{len(example[lists[0]])} {lists[0]} but {len(example[name])} {name}")
        for role in self._roles:
            if role.kind == "text" and example[role.name] != example[role.name].strip():
                self._counts["{} texts begin or end with white space, which is kept"] += 1

    def _answers(self, value: Any, name: str, context: str) -> list[dict[str, Any]]:
        """Return the answers of a question as ``{"text", "start"}``.

        A misplaced answer is moved to its nearest occurrence in ``context``; an answer that does not occur in it is
        dropped.
        """
        entries = _answer_list(value, name)
        answers = []
        for answer, start in entries:
            at = _place(answer, start, context)
            if at < 0:
                continue
            if start is None:
                self._counts["{} answers had no start and were placed at their first occurrence"] += 1
            elif at != start:
                self._counts[
                    "{} answers were not at their stated start and were moved to their nearest occurrence"
                ] += 1
            answers.append({"text": answer, "start": at})
        if entries and not answers:
            raise Unusable(f"the answer {_short(entries[0][0])} is not in the {self._context}")
        if len(answers) < len(entries):
            self._counts["{} questions lost an answer that is not in the context but kept another"] += 1
        return answers


def _text(value: Any, name: str) -> str:
    """Convert a value to a text: a string is kept, a list of strings (sentences) is joined by spaces.

    Raises ``Unusable`` for other values.
    """
    if value == []:
        value = None
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        value = " ".join(value)
    return _scalar(value, name)


def _label(value: Any, name: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return sys.intern(_scalar(value, name).strip())


def _scalar(value: Any, name: str) -> str:
    """Convert a value to a non-empty string; numbers become text.

    Raises ``Unusable``, naming the role ``name``, for other values.
    """
    if value is None:
        raise Missing(f"no {name}", name)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise Unusable(f"{name} is {_sort(value)}, not a string")
    text = str(value)
    if not text.strip():
        raise Missing(f"{name} is empty", name)
    if not text.isascii() and any("\ud800" <= sign <= "\udfff" for sign in text):
        raise Unusable(f"{name} contains half a surrogate pair, which is not a character")
    return text


LARGEST_NUMBER = 1e100
"""Largest absolute value of a target, so that sums of squares stay finite in float64."""


def _number(value: Any, name: str, form: NumberForm) -> float:
    text, number = _scalar(value, name).strip(), form.read(value)
    if is_empty(value):
        raise Missing(f"no {name}", name)
    if not math.isfinite(number):
        raise Unusable(f"{name} is {_short(text)}, not a finite number")
    if abs(number) > LARGEST_NUMBER:
        raise Unusable(f"{name} is {_short(text)}, which exceeds the limit of {LARGEST_NUMBER:g}; use another unit")
    return number


def _words(value: Any, name: str) -> list[str]:
    """Convert a value to a list of strings: a list of strings or numbers, or a string split at white space.

    Raises ``Unusable`` for other values.
    """
    if isinstance(value, str):
        value = _listed(value, name)
    if value is None or value == []:
        raise Missing(f"no {name}", name)
    if not isinstance(value, list):
        raise Unusable(f"{name} is {_sort(value)}, not a list")
    try:
        return [_scalar(part, f"one of the {name}") for part in value]
    except Missing as error:  # one item is empty, but the cell is not
        raise Unusable(str(error)) from None


def _listed(text: str, name: str) -> list[str]:
    """Split a text into words: the items of a printed list, else at white space. Raises ``Unusable`` for a damaged
    list.
    """
    items = printed_list(text)
    if items is not None and all(isinstance(part, str) for part in items):
        return items
    if begins_list(text):
        raise Unusable(f"{name} is {_short(text)}, not a complete list")
    return text.split()


def _tags(value: Any, name: str) -> list[str]:
    return [sys.intern(tag) for tag in _words(value, name)]


def is_nan(value: Any) -> bool:
    """Return True if ``value`` is the float NaN."""
    return isinstance(value, float) and value != value


def _signal(value: Any, name: str) -> Any:
    """Return a value that a processor will convert. Raises ``Missing`` for an empty value."""
    if value is None or (isinstance(value, (str, list, dict)) and not value):
        raise Missing(f"no {name}", name)
    return value


def natural(label: str) -> tuple[int, float, str]:
    """Return a sort key for labels: numbers by value, then words alphabetically."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label


SEPARATORS = ("|", ";", ",")
"""Separators of several labels in one cell that are detected, in order of preference: commas also occur within
labels.
"""


def separator_of(cells: Iterable[Any]) -> str:
    """Detect the separator of the labels in a column: the first of ``SEPARATORS`` that occurs in at least 1 % of the
    texts.
    """
    texts = [cell for cell in cells if isinstance(cell, str)]
    often = (mark for mark in SEPARATORS if 100 * sum(mark in text for text in texts) >= max(1, len(texts)))
    return next(often, SEPARATORS[-1])


def label_set(value: Any, name: str, separator: str) -> list[str]:
    """Return the distinct labels of a row, in order, from a list, a printed list, or text with ``separator`` between
    labels.

    An empty list means a row without labels. Raises ``Missing`` for an empty cell and ``Unusable`` for other values.
    """
    if isinstance(value, str):
        value = _label_list(value, name)
    if not isinstance(value, list):
        value = [part for part in _label(value, name).split(separator) if part.strip()]
        if not value:
            raise Missing(f"no {name}", name)
    try:
        return list(dict.fromkeys(_label(part, f"one of the {name}") for part in value))
    except Missing as error:  # one item is empty, but the cell is not
        raise Unusable(str(error)) from None


def _label_list(text: str, name: str) -> Any:
    """Parse the labels of a printed list, whose quotes may be missing; return other texts unchanged.

    Raises ``Unusable`` for a damaged list.
    """
    items, inner = printed_list(text), text.strip()
    if items is not None or not inner.startswith("["):
        return text if items is None else items
    if not inner.endswith("]") or any(mark in inner[1:-1] for mark in "[]'\""):
        raise Unusable(f"{name} is {_short(text)}, not a complete list")
    return [part.strip() for part in inner[1:-1].split(",") if part.strip()]


CONVERT: dict[str, Callable[[Any, str], Any]] = {
    "text": _text,
    "label": _label,
    "words": _words,
    "tags": _tags,
    "signal": _signal,
    "series": _signal,
    "messages": lambda value, name: value,
    "name": lambda value, name: None if is_empty(value) else str(value).strip(),
    "cell": lambda value, name: None if is_empty(value) else value,
}
"""Function that converts a column's value for each kind of role.

Answers, images, sounds and numbers are converted separately, since they need their context, the table's folder, and the
column's number format.
"""


def _answer_list(value: Any, name: str) -> list[tuple[str, int | None]]:
    """Return (text, start or None) of each answer.

    Allowed are SQuAD's list of ``{"text", "answer_start"}``, one such object (whose values may be lists), or a plain
    answer.
    """
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        texts = value["text"]
        starts = value.get("answer_start", value.get("start")) or [None] * len(texts)
        if not isinstance(starts, list) or len(starts) != len(texts):
            raise Unusable(f"{name} has {len(texts)} texts but not as many starts")
        value = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if value is None:
        raise Missing(f"no {name}", name)
    if isinstance(value, (str, dict)):
        value = [value]
    if not isinstance(value, list):
        raise Unusable(f"{name} is {_sort(value)}, not a list of answers")
    return [_answer(answer if isinstance(answer, dict) else {"text": answer}, name) for answer in value]


def _answer(answer: dict[str, Any], name: str) -> tuple[str, int | None]:
    try:
        text = _scalar(answer.get("text"), f"one of the {name}")
    except Missing as error:  # the text is empty, but the row has other answers, or a start
        raise Unusable(str(error)) from None
    start = answer.get("answer_start", answer.get("start"))
    if start is not None and (isinstance(start, bool) or not isinstance(start, int)):
        raise Unusable(f"the start of the answer {_short(text)} is {_short(str(start))}, not an integer")
    return text, start


def _place(answer: str, start: int | None, context: str) -> int:
    """Find the index of ``answer`` in ``context``: ``start`` if it is there, else its nearest occurrence; -1 if there
    is none.
    """
    if start is None:
        return context.find(answer)
    if start >= 0 and context.startswith(answer, start):
        return start
    places, at = [], context.find(answer)
    while at >= 0:
        places.append(at)
        at = context.find(answer, at + 1)
    return min(places, key=lambda place: abs(place - start), default=-1)


def _sort(value: Any) -> str:
    names = {bool: "true or false", dict: "an object", list: "a list", type(None): "null"}
    return names.get(type(value), "a number")


def _short(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")
