"""Rows of a file of conversations or preferences, and the training texts of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from qkv.data.records.conversations.contents import pictures_of
from qkv.data.records.conversations.messages import Message
from qkv.data.records.conversations.read import (
    CONVERSATION_ROLES,
    PREFERENCE_ROLES,
    Conversation,
    JudgedAnswer,
    Preference,
    read_conversation,
    read_preference,
)
from qkv.data.records.model import Records, Role
from qkv.data.records.open import open_rows
from qkv.data.records.values import Unusable
from qkv.spec.data import Data
from qkv.system.errors import UserError
from qkv.tasks.dataset import OTHER
from qkv.tokenizers.chat_targets import EncodedChat, Learn, encode_chat, find_answer
from qkv.tokenizers.chat_template import ChatTemplate

PARTS = ("chosen", "rejected")
"""Names of the two texts of a preference."""
_DECISIVE = {"rejected", "label"}
"""Roles that only preferences have."""
_LOOKED_AT = 20
"""Number of rows that are read to tell whether labels judge answers."""

ChatRow = Conversation | Preference | JudgedAnswer


class UnusedRow(NamedTuple):
    """Row that cannot be used: its place in the data, such as "line 7" or "row 3", and the reason."""

    place: str
    reason: str


class ChatRows(NamedTuple):
    """Rows by number, counted from 1 in the order of the file; the unusable ones; sentences on how the file was read.

    ``preferences``: True for chosen and rejected answers, or answers with a label.
    """

    rows: Mapping[int, ChatRow]
    unused: Sequence[UnusedRow]
    notes: Sequence[str]
    preferences: bool


def read_chats(source: str, columns: Mapping[str, str]) -> ChatRows:
    """Read the conversations, or preferences, in the file ``source``; ``columns``: column of each role.

    It holds preferences if it has a column of rejected answers, or one of labels that tell whether an answer is good.
    Raises ``UserError``.
    """
    roles = _open(source, columns, PREFERENCE_ROLES).columns.keys() & _DECISIVE
    preferences = "rejected" in roles or bool(roles and (_DECISIVE & columns.keys() or _judges(source, columns)))
    read = read_preference if preferences else read_conversation
    records = _open(source, columns, PREFERENCE_ROLES if preferences else CONVERSATION_ROLES)
    rows, unused = dict[int, ChatRow](), [UnusedRow(f"line {row.line:,}", row.reason) for row in records.bad]
    for number, row in enumerate(records.splits[OTHER], 1):
        try:
            rows[number] = read(row)
        except Unusable as error:
            unused.append(UnusedRow(f"row {number:,}", str(error)))
    return ChatRows(rows, unused, [*records.notes, *_left_out(rows)], preferences)


def _open(source: str, columns: Mapping[str, str], roles: Sequence[Role]) -> Records:
    return open_rows(Data(source=source, columns=dict(columns)), roles, source, OTHER)


def _judges(source: str, columns: Mapping[str, str]) -> bool:
    """Return True if the first rows with a label can be read as judged answers."""
    for row in _open(source, columns, PREFERENCE_ROLES).splits[OTHER][:_LOOKED_AT]:
        try:
            read_preference(row)
        except Unusable:
            continue
        return True
    return False


def _left_out(rows: Mapping[int, ChatRow]) -> list[str]:
    """Return a sentence on messages after the last answer."""
    counts = [row.left_out for row in rows.values() if isinstance(row, Conversation) and row.left_out]
    if not counts:
        return []
    has = "conversation has" if len(counts) == 1 else "conversations have"
    return [f"{len(counts):,} {has} messages after the last answer, which are left out"]


def encode_row(row: ChatRow, template: ChatTemplate, learn: Learn, ends: Collection[int]) -> dict[str, EncodedChat]:
    """Return the training texts of a row by name: of a conversation "", or "1", "2", … if it has several; of a
    preference "chosen" and "rejected"; of a judged answer "good" or "bad". Raises ``UserError``.
    """
    if isinstance(row, Conversation):
        if pictures_of(row.messages):
            raise UserError("a message has a picture, which 'qkv show' does not count; training reads it")
        texts = encode_chat(template, row.messages, learn, row.tools, ends)
        return {"" if len(texts) == 1 else str(i): text for i, text in enumerate(texts, 1)}
    if isinstance(row, JudgedAnswer):
        answers = {"good" if row.good else "bad": row.answer}
    else:
        answers = dict(zip(PARTS, (row.chosen, row.rejected), strict=True))
    return {name: _encoded(row, answer, template, ends) for name, answer in answers.items()}


def _encoded(
    row: Preference | JudgedAnswer, messages: Sequence[Message], template: ChatTemplate, ends: Collection[int]
) -> EncodedChat:
    """Return the prompt of ``row`` with one answer, which alone is compared."""
    answer = find_answer(template, row.prompt, messages, ends, tools=row.tools)
    ids = (*answer.prompt, *answer.ids)
    targets = (*[False] * len(answer.prompt), *answer.targets)
    special = template.special_ids
    marks = tuple(index in special for index in ids)
    return EncodedChat(ids, targets, marks, int(marks[-1]), 1)
