"""Check of conversations and preferences when their table is read, so that unusable rows are listed by line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from qkv.data.records.conversations.read import prompt_of, read_conversation, read_preference
from qkv.data.records.model import Role
from qkv.data.records.table import Table
from qkv.system.errors import UserError

_ANSWERS = {"chosen": ("chosen", "rejected"), "messages": ("completion",)}
"""Roles proposed beside a prompt, by the first role that a task needs."""


class ConversationCheck:
    """Callable that raises ``Unusable`` for an example without a conversation or preference; other tables pass.

    ``notes``: sentences on columns and messages that are not read.
    """

    def __init__(self, roles: Sequence[Role], columns: Mapping[str, str]):
        names = {role.name for role in roles}
        self._applies = any(role.kind == "messages" for role in roles)
        self._read = read_preference if "chosen" in names else read_conversation
        self._columns, self._rows, self._cut = columns, 0, 0

    def __call__(self, example: Mapping[str, Any]) -> None:
        if self._applies:
            self._rows += 1
            self._cut += getattr(self._read(example), "left_out", 0) > 0

    def notes(self) -> list[str]:
        """Return sentences on what is left out of the rows that were checked."""
        if not self._applies:
            return []
        notes = []
        beside = [
            self._columns[role] for role in ("prompt", "context", "completion", "history") if role in self._columns
        ]
        if "messages" in self._columns and beside and self._read is read_conversation:
            listed = ", ".join(map(repr, beside))
            notes.append(f"{listed}: not read in rows whose {self._columns['messages']!r} end with an answer")
        if self._cut:
            go = "goes on after its" if self._cut == 1 else "go on after their"
            notes.append(f"{self._cut:,} of {self._rows:,} conversations {go} last answer; what follows is left out")
        return notes


def check_columns(table: Table, roles: Sequence[Role], columns: Mapping[str, str], where: str) -> None:
    """Raise ``UserError`` for a table of conversations or preferences in which no column was found for them."""
    names = [role.name for role in roles if role.kind == "messages"]
    needed = ("chosen", "label") if "chosen" in names else ("messages", "completion")
    if names and not any(name in columns for name in needed):
        _refuse_the_other_form(table, names, columns)
        preferences = "prompt, chosen and rejected, or prompt, completion and label"
        forms = preferences if "chosen" in names else "messages, or prompt and completion"
        raise UserError(_columns_sentence(table, forms, ("prompt", *_ANSWERS[needed[0]]), columns, where))


def _refuse_the_other_form(table: Table, names: Sequence[str], columns: Mapping[str, str]) -> None:
    """Raise ``UserError`` for conversations where preferences are read, and for preferences where conversations are."""
    if "chosen" in names and "messages" in columns:
        raise UserError(
            f"{table.name} holds conversations, but no column tells which answers are better (chosen and rejected, or "
            "label); train on the answers with 'qkv train chat'"
        )
    answers = [column for column in table.columns if column in ("chosen", "rejected")]
    if "chosen" not in names and answers:
        raise UserError(
            f"{table.name} holds preferences; train on them with 'qkv train prefer', or on the answers of one column "
            f"with --completion {answers[0]}"
        )


def check_any_column(table: Table, roles: Sequence[Role], columns: Mapping[str, str], where: str) -> None:
    """Raise ``UserError`` for a table of conversations or preferences in which no column has a known name."""
    if any(role.kind == "messages" for role in roles) and not columns:
        forms = "messages, of prompt and completion, or of prompt, chosen and rejected"
        raise UserError(_columns_sentence(table, forms, ("prompt", "completion"), columns, where))


def _columns_sentence(table: Table, forms: str, roles: Sequence[str], columns: Mapping[str, str], where: str) -> str:
    """Return the sentence on a table that lacks ``columns``; it proposes the other ones for ``roles``, in order."""
    count = len(table.columns)
    proposed = roles if count >= len(roles) else roles[1:] if count > 1 else ("messages",)
    free = iter([column for column in table.columns if column not in columns.values()])
    pairs = [(role, column) for role in proposed if (column := columns.get(role) or next(free, None))]
    options = " ".join(f"--{role} {shlex.quote(column)}" for role, column in pairs)
    settings = ", ".join(f"{role}: {column}" for role, column in pairs)
    return (
        f"{table.name} has no column of {forms}; its columns are {', '.join(map(repr, table.columns[:20]))}; say which "
        f"is which, such as {options} ({where}.columns={{{settings}}})"
    )


def prompt_text(row: Mapping[str, Any]) -> str:
    """Return a text that is equal for rows with the same prompt."""
    return repr([sorted(message.items()) for message in prompt_of(row)])
