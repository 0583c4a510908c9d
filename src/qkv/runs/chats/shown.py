"""Conversations as they are trained on, as a page, as tables and as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qkv.report.charts.bars import BarChart
from qkv.report.figures import counted
from qkv.report.fragment import Fragment
from qkv.report.page import Page
from qkv.report.tokens import TokenText, legend, token_markup
from qkv.runs.chats.rows import UnusedRow
from qkv.tasks.chats.audit import ChatAudit

_BINS = 10
"""Maximum number of bars of the histogram of lengths."""
_ROWS = 200
"""Maximum number of unusable rows in the table of the page."""


@dataclass(frozen=True)
class ShownChats:
    """Conversations with the kind of every token, and the counts over all rows; notebooks show the counts as tables.

    ``start``: model whose tokenizer and template are used.   ``audit``: counts.   ``texts``: training texts of the rows
    that are shown, by the number of the row in the data, from 1.   ``unused``: rows that cannot be used, with reasons.
    ``notes``: sentences on how the data were read.   ``template``: source of the chat template.
    """

    start: str
    audit: ChatAudit
    texts: Mapping[int, Sequence[TokenText]]
    unused: tuple[UnusedRow, ...]
    notes: tuple[str, ...]
    template: str

    def page(self) -> str:
        """Return a self-contained HTML page."""
        return _page(self)

    def plain(self) -> dict[str, Any]:
        """Return the counts, the unusable rows and the tokens of the rows that are shown as plain data."""
        return {
            **self.audit.plain(),
            "start": self.start,
            "unused": [row._asdict() for row in self.unused],
            "shown": {number: [_plain(text) for text in texts] for number, texts in self.texts.items()},
        }

    def _repr_html_(self) -> str:
        """HTML for notebooks."""
        return _fragment(self)


def _plain(text: TokenText) -> dict[str, Any]:
    return {
        "title": text.title,
        "ids": [token.id for token in text.tokens],
        "tokens": [token.text for token in text.tokens],
        "kinds": [token.kind for token in text.tokens],
    }


def _page(chats: ShownChats) -> str:
    """Build the page: counts, warnings, the rows that are shown, lengths, unusable rows, template."""
    audit = chats.audit
    page = Page(f"What is learned from {audit.name}")
    page.data["audit"] = audit.plain()
    warned = bool(audit.warnings)
    page.header(f"{audit.headline}.", "look at the notes" if warned else "no problem", "danger" if warned else "good")
    page.cards(_cards(chats))
    for sentence in audit.warnings:
        page.note(f"{_capital(sentence)}.", "danger")
    for sentence in (*audit.notes, *chats.notes):
        page.note(f"{_capital(sentence)}.")
    with page.section("Every token"):
        page.drawing(legend())
        for i, text in enumerate(text for texts in chats.texts.values() for text in texts):
            with page.details(f"{_capital(text.title)}", text.caption, open_=i == 0):
                page.prose(text.caption)
                page.drawing(token_markup(text))
    with page.section("Lengths"):
        page.picture(lengths_chart(audit.lengths), 440)
        page.table(["texts", "tokens"], quantile_rows(audit))
    with page.section("Counts"):
        page.table(["quantity", "number"], count_rows(chats))
    _add_unused(page, chats)
    with page.section("Template"), page.details("Chat template", chats.template):
        page.code(chats.template)
    return page.html()


def _fragment(chats: ShownChats) -> str:
    """Build the HTML for a notebook: the counts, as on the page, as tables."""
    page = Fragment(f"What is learned from {chats.audit.name}")
    page.header(f"{chats.audit.headline}.")
    for sentence in (*chats.audit.warnings, *chats.audit.notes):
        page.prose(f"{_capital(sentence)}.")
    page.table(["quantity", "number"], count_rows(chats))
    page.table(["texts", "tokens"], quantile_rows(chats.audit))
    _add_unused(page, chats)
    return page.html()


def _cards(chats: ShownChats) -> list[tuple[str, str, str]]:
    audit = chats.audit
    unused = f"{counted(len(chats.unused), 'row')} cannot be used" if chats.unused else "all can be used"
    share = f"{audit.targets / audit.tokens:.1%} of {audit.tokens:,} tokens"
    longest = max(audit.lengths)
    return [
        ("rows", f"{audit.rows:,}", unused),
        ("targets", f"{audit.targets:,}", share),
        ("ends that are learned", f"{audit.ends:,}", f"of {counted(audit.answers, 'answer')}"),
        ("longest text", f"{longest:,}", f"tokens; {audit.length:,} fit"),
    ]


def count_rows(chats: ShownChats) -> list[tuple[str, int]]:
    """Return the rows of the table of counts: (quantity, number)."""
    audit, cut = chats.audit, chats.audit.cut
    starts = [("texts that begin with one start token", audit.starts), ("… with two", audit.double_starts)]
    return [
        ("rows that can be used", audit.rows),
        ("rows that cannot be used", len(chats.unused)),
        ("rows without a target", len(audit.untaught)),
        ("texts", audit.texts),
        ("conversations with several texts", audit.several),
        ("tokens", audit.tokens),
        ("targets", audit.targets),
        ("special tokens of the template", audit.marks),
        ("answers that are learned", audit.answers),
        ("answers whose end is a target", audit.ends),
        *(starts if audit.has_start else []),
        (f"texts longer than {audit.length:,} tokens", cut.texts),
        ("tokens that truncation removes", cut.tokens),
        ("targets that truncation removes", cut.targets),
        ("answers that truncation removes", cut.answers),
        ("rows without a target after truncation", len(cut.rows)),
    ]


def quantile_rows(audit: ChatAudit) -> list[tuple[str, int]]:
    """Return the rows of the table of lengths: (quantile, tokens)."""
    return list(audit.quantiles.items())


def lengths_chart(lengths: Sequence[int]) -> BarChart:
    """Build the histogram of the lengths of texts, in at most ten bins of equal, round width."""
    low, high = min(lengths), max(lengths)
    width = _round_width((high - low + 1) / _BINS)
    first = low // width
    counts = [0] * (high // width - first + 1)
    for length in lengths:
        counts[length // width - first] += 1
    names = [f"{(first + i) * width:,}–{(first + i + 1) * width - 1:,}" for i in range(len(counts))]
    names = names if width > 1 else [f"{first + i:,}" for i in range(len(counts))]
    return BarChart("Number of texts by tokens", list(zip(names, counts, strict=True)), width=440)


def _round_width(width: float) -> int:
    """Return the smallest 1, 2 or 5 times a power of ten that is at least ``width``."""
    power = 10 ** max(0, math.floor(math.log10(max(1.0, width))))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= width)


def _add_unused(page: Page, chats: ShownChats) -> None:
    if not chats.unused:
        return
    with page.section("Rows that cannot be used"):
        page.table(["row", "reason"], [list(row) for row in chats.unused[:_ROWS]])
        if len(chats.unused) > _ROWS:
            page.prose(f"… and {counted(len(chats.unused) - _ROWS, 'row')} more.")


def _capital(sentence: str) -> Any:
    return f"{sentence[0].upper()}{sentence[1:]}"
