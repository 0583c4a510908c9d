"""What a task asks of a table of examples, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Kind = Literal["text", "label", "number", "words", "tags", "answers"]


class Role(NamedTuple):
    """A part that a column plays. ``names`` are common names of such a column, lower-case, the most usual first.

    One that is ``optional`` is there only where a column is given for it: it is never guessed.
    """

    name: str
    kind: Kind
    names: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used. ``line`` counts from 1 in the unpacked file; of an example of several lines it is the first one."""

    file: str
    line: int
    reason: str


@dataclass(frozen=True)
class Records:
    """Examples, ready to be encoded.

    - ``splits``: "train", "validation" and, where there is one, "test"; a row maps the name of a role to its value:
      text and label are strings, number is a float, words and tags are lists of strings of the same length, answers is a list of
      ``{"text": str, "start": int}`` with ``start`` in characters of the context, empty if the question has no answer
    - ``columns``: the column that was taken for each role
    - ``bad``: the rows that were skipped
    - ``digest``: changes with the content and with how it was read
    - ``notes``: sentences for the user
    """

    name: str
    splits: dict[str, list[dict[str, Any]]]
    columns: dict[str, str]
    bad: tuple[BadRow, ...]
    digest: str
    notes: tuple[str, ...]
