"""Interface between tasks and tables of examples: roles and records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qkv.spec.data import Decimal
from qkv.spec.processors import Kind as Kind
from qkv.spec.processors import Role as Role


@dataclass(frozen=True)
class BadRow:
    """Row of a data file that cannot be used, and the reason.

    ``line``: first line of the example in the uncompressed file, counted from 1. ``missing``: role whose cell is empty,
    if that is the reason.
    """

    file: str
    line: int
    reason: str
    missing: str = ""


@dataclass(frozen=True)
class Records:
    """Examples read from tables, by split, with one value per role of the task; not yet tokenised.

    - ``splits``: "train", "validation" and, if there is one, "test"; a row maps the name of a role to its value: text
      and label are strings, number is a float, labels is a list of distinct strings, words and tags are lists of
      strings of the same length, answers is a list of ``{"text": str, "start": int}`` with ``start`` in characters of
      the context, empty without an answer
    - ``columns``: column used for each role
    - ``bad``: skipped rows
    - ``digest``: hash of the content and of how it was read
    - ``notes``: sentences for the user
    - ``decimal``: decimal mark in the columns of numbers; None if no cell determines it
    """

    name: str
    splits: dict[str, list[dict[str, Any]]]
    columns: dict[str, str]
    bad: tuple[BadRow, ...]
    digest: str
    notes: tuple[str, ...]
    decimal: Decimal | None = None
