"""Conversations as a model would be trained on them: every token with its kind, and the counts over the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import get_args

from qkv.report.tokens import ShownToken, TokenKind, TokenText
from qkv.runs.chats.pieces import pieces
from qkv.runs.chats.rows import PARTS, ChatRows, UnusedRow, encode_row, read_chats
from qkv.runs.chats.shown import ShownChats
from qkv.runs.chats.source import ChatStart, open_start
from qkv.system.errors import UserError, nearest
from qkv.tasks.chats.audit import ChatAudit, audit_conversations, fitting
from qkv.tokenizers.chat_targets import EncodedChat, Learn

_FIRST = 3
"""Number of rows shown by default, beside the longest one and the first one without a target."""
Encoded = Mapping[int, Mapping[str, EncodedChat]]
"""Number of a row -> its training texts by name."""


def show_chats(
    source: str,
    start: str,
    rows: Iterable[int] = (),
    learn: Learn | None = None,
    length: int | None = None,
    chat_template: str | None = None,
    columns: Mapping[str, str] | None = None,
    name: str = "",
) -> ShownChats:
    """Encode the conversations or preferences in the file ``source`` for the model ``start``, without its weights.

    ``rows``: numbers of the rows to show, from 1; default: the first three, the longest, and the first without a
    target. ``learn``: "answers" (default), "last" or "everything". ``length``: maximum number of tokens of a text;
    default: the context length of the model. ``chat_template``: Jinja text that replaces the model's template.
    ``columns``: column of each role. ``name``: name of the data in sentences. Raises ``UserError``, also if no token of
    the data would be learned.
    """
    if learn is not None and learn not in get_args(Learn):
        raise UserError(f"learn: {learn!r} given; {nearest(str(learn), get_args(Learn))}")
    model = open_start(start, chat_template)
    limit = _limit(length, model)
    data, name = read_chats(source, columns or {}), name or source
    if data.preferences and learn is not None:
        raise UserError(f"{name} holds preferences, whose answers alone are compared; leave out 'learn'")
    encoded, unused = _encoded(data, model, learn or "answers")
    if not encoded:
        reasons = unused[len(data.unused) :] or unused  # a template that refuses all rows comes first
        first = f": {reasons[0].place}: {reasons[0].reason}" if reasons else ""
        raise UserError(f"no row of {name} can be used, so a run on it would learn nothing{first}")
    texts = {number: list(parts.values()) for number, parts in encoded.items()}
    unread = 0 if model.template.reads_tools else sum(bool(data.rows[number].tools) for number in encoded)
    parts = max((sum(part in PARTS for part in row) for row in encoded.values()), default=0)
    audit = audit_conversations(
        name, texts, limit, model.tokenizer.special("bos"), max(1, parts), learn == "everything", unread
    )
    audit.check()
    keep = partial(fitting, length=limit, everything=learn == "everything")
    chosen = {number: _texts(number, encoded[number], model, keep) for number in _chosen(list(rows), audit, encoded)}
    return ShownChats(start, audit, chosen, tuple(unused), tuple(data.notes), model.template.source)


def _limit(length: int | None, model: ChatStart) -> int:
    """Return the maximum number of tokens of a text. Raises ``UserError``."""
    if length is not None and length < 1:
        raise UserError(f"length: {length} given, but it should be at least 1")
    limit = length or model.context_length
    if limit is None:
        raise UserError(f"the context length of {model.name} is unknown; give it as length")
    return limit


def _encoded(data: ChatRows, model: ChatStart, learn: Learn) -> tuple[Encoded, list[UnusedRow]]:
    """Encode the rows; return the training texts and all rows that cannot be used."""
    encoded, unused = dict[int, Mapping[str, EncodedChat]](), list(data.unused)
    for number, row in data.rows.items():
        try:
            encoded[number] = encode_row(row, model.template, learn, model.ends)
        except UserError as error:  # the template refuses its messages
            unused.append(UnusedRow(f"row {number:,}", str(error)))
    return encoded, unused


def _chosen(rows: Sequence[int], audit: ChatAudit, encoded: Encoded) -> list[int]:
    """Return the numbers of the rows to show. Raises ``UserError`` for a row that is not there or cannot be used."""
    if not rows:
        longest = max(encoded, key=lambda number: max([0, *(len(text.ids) for text in encoded[number].values())]))
        return list(dict.fromkeys((*list(encoded)[:_FIRST], longest, *audit.untaught[:1])))
    for number in rows:
        if number not in encoded:
            raise UserError(
                f"row: {number} given, but {audit.name} has no such row that can be used; its usable rows are "
                f"{min(encoded):,} to {max(encoded):,}"
            )
    return list(dict.fromkeys(rows))


def _texts(
    number: int, texts: Mapping[str, EncodedChat], model: ChatStart, keep: Callable[[EncodedChat], int]
) -> list[TokenText]:
    """Return the texts of one row with the kind of every token; ``keep``: number of tokens that truncation keeps."""
    special, rows = model.template.special_ids, list[TokenText]()
    for part, text in texts.items():
        named = f"row {number:,}, {part if not part.isdecimal() else f'text {part}'}" if part else f"row {number:,}"
        words = pieces(model.tokenizer, text.ids)
        kinds: list[TokenKind] = [_kind(*flags) for flags in zip(text.targets, text.marks, strict=True)]
        tokens = [
            ShownToken(word, kind, index, index in special)
            for word, kind, index in zip(words, kinds, text.ids, strict=True)
        ]
        rows.append(TokenText(named, tokens, keep(text)))
    return rows


def _kind(target: bool, mark: bool) -> TokenKind:
    return "target" if target else "mark" if mark else "context"
