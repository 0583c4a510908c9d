"""Counts of what is learned from conversations, taken before a step is trained: targets, ends, lengths, truncation.

``qkv show`` prints them, and training checks them again, so that both give the same figures and refusals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from qkv.report.figures import counted
from qkv.system.errors import UserError

if TYPE_CHECKING:
    from qkv.tokenizers.chat_targets import EncodedChat

QUANTILES = {"minimum": 0.0, "median": 0.5, "90 %": 0.9, "99 %": 0.99, "maximum": 1.0}
"""Name of each quantile of the lengths -> fraction of the texts that are not longer."""
_SHOWN = 8
"""Maximum number of rows named in a sentence."""


@dataclass(frozen=True)
class ChatCut:
    """Loss by truncation of texts of more than ``ChatAudit.length`` tokens, see ``fitting``.

    texts: number of longer texts.   tokens, targets, answers: removed tokens, targets and answers.   rows: numbers of
    the rows of which no target is left.
    """

    texts: int = 0
    tokens: int = 0
    targets: int = 0
    answers: int = 0
    rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class ChatAudit:
    """Counts over the conversations of one data set, each encoded as one text or several.

    name: data set, for sentences.   length: maximum number of tokens of a text.   rows: number of conversations.
    tokens, targets, marks: number of tokens of all texts, of those that enter the loss, and of special tokens, which
    only the template writes.   answers: answers that are learned; ends: those whose end token is a target.   several:
    conversations with more than one text, because the template changes earlier turns.   starts, double_starts: texts
    that begin with one or with two start tokens; ``has_start``: whether the tokenizer has one.   untaught: numbers of
    the rows without a target.   lengths: number of tokens of each text.   cut: what truncation to ``length`` removes.
    unread_tools: number of rows whose tools the template does not read.
    """

    name: str
    length: int
    rows: int
    tokens: int
    targets: int
    marks: int
    answers: int
    ends: int
    several: int
    starts: int
    double_starts: int
    has_start: bool
    untaught: tuple[int, ...]
    lengths: tuple[int, ...]
    cut: ChatCut
    unread_tools: int = 0

    @property
    def texts(self) -> int:
        """Number of training texts."""
        return len(self.lengths)

    @property
    def quantiles(self) -> dict[str, int]:
        """Quantiles of the lengths by name: the smallest length that at least this fraction of texts does not exceed.

        Empty without texts.
        """
        ordered = sorted(self.lengths)
        last = len(ordered) - 1
        return {name: ordered[_rank(share, last)] for name, share in QUANTILES.items()} if ordered else {}

    @property
    def headline(self) -> str:
        """Sentence on targets, rows without targets, and ends."""
        none = f"{_have(len(self.untaught))} none; " if self.untaught else ""
        return f"{self.targets:,} of {counted(self.tokens, 'token')} are targets; {none}{self._ends()}"

    def _ends(self) -> str:
        if not self.answers:
            return "no answer is learned"
        if self.ends == self.answers:
            return "the end is a target in all"
        return f"the end is a target in {self.ends:,} of {counted(self.answers, 'answer')}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on what is probably not intended: rows without targets, unlearned ends, double starts, cuts."""
        none = f"{_have(len(self.untaught))} no target: {_listed(self.untaught)}"
        left = f"of {counted(len(self.cut.rows), 'row')} truncation leaves no target: {_listed(self.cut.rows)}"
        return ((none,) if self.untaught else ()) + self._facts() + ((left,) if self.cut.rows else ())

    def _facts(self) -> tuple[str, ...]:
        """Return the warnings that name no row."""
        ends = f"{self.answers - self.ends:,} of {counted(self.answers, 'answer')} teach no end, so the model may go on"
        doubles = f"{counted(self.double_starts, 'text')} of {self.texts:,} begin with two start tokens"
        tools = tools_sentence(self.unread_tools, self.rows)
        pairs = [
            (self.ends < self.answers, ends),
            (self.double_starts, doubles),
            (self.cut.texts, self._cuts()),
            (self.unread_tools, tools),
        ]
        return tuple(sentence for condition, sentence in pairs if condition)

    @property
    def summary(self) -> tuple[str, ...]:
        """Sentences for the log of a training, which name no row, since splits have other numbers than the file."""
        return (self.headline, *self._facts(), *self.notes)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what follows from the template: several texts of a conversation."""
        if not self.several:
            return ()
        return (
            f"{counted(self.several, 'conversation')} of {self.rows:,} {_be(self.several)} trained as several texts, "
            "one for each answer, because the template changes earlier turns",
        )

    def _cuts(self) -> str:
        cut = self.cut
        return (
            f"{counted(cut.texts, 'text')} of {self.texts:,} {_be(cut.texts)} longer than {self.length:,} tokens; what "
            f"comes after the last answer that fits is left out: {counted(cut.tokens, 'token')} with "
            f"{counted(cut.targets, 'target')}, and {counted(cut.answers, 'answer')}"
        )

    def check(self) -> None:
        """Raise ``UserError`` if no token would be learned."""
        if not self.targets:
            raise UserError(
                f"no token of {self.name} is a target, so a run on it would learn nothing: {self._without_targets()}"
            )
        if self.targets == self.cut.targets:
            raise UserError(
                f"truncation to {self.length:,} tokens removes every target of {self.name}, so a run on it would learn "
                f"nothing; the longest text has {max(self.lengths):,} tokens"
            )

    def _without_targets(self) -> str:
        if not self.rows:
            return "it has no conversation that can be used"
        return f"{_have(self.rows)} no answer of the assistant that is learned"

    def plain(self) -> dict[str, Any]:
        """Return the counts as plain data, without the length of each text."""
        values = {**asdict(self), "texts": self.texts, "quantiles": self.quantiles}
        return {name: value for name, value in values.items() if name != "lengths"}


def audit_conversations(
    name: str,
    rows: Mapping[int, Sequence[EncodedChat]],
    length: int,
    start: int | None = None,
    parts: int = 1,
    everything: bool = False,
    unread_tools: int = 0,
) -> ChatAudit:
    """Count targets, ends, lengths and cuts of encoded conversations.

    rows: training texts of each row of the data, by its number.   length: maximum number of tokens of a text.   start:
    id of the start token; None if the tokenizer has none.   parts: texts of every row, 2 for a chosen and a rejected
    answer.   everything: True if all tokens are learned, not answers.   unread_tools: number of rows whose tools the
    template does not read.
    """
    tally = ChatTally(length, start, parts, everything)
    tally.unread_tools = unread_tools
    for number, texts in rows.items():
        tally.add(number, texts)
    return tally.audit(name)


def fitting(text: EncodedChat, length: int, everything: bool = False) -> int:
    """Return the number of tokens of a text that truncation keeps: all if it has at most ``length``, else those through
    the last answer that ends within ``length`` tokens, 0 if none does.

    everything: True if all tokens are learned; the first ``length`` tokens are then kept.
    """
    if len(text.ids) <= length or everything:
        return min(len(text.ids), length)
    ends = (i for i, (now, later) in enumerate(pairwise(text.targets[: length + 1]), 1) if now and not later)
    return max(ends, default=0)


class ChatTally:
    """Running counts over rows; see ``audit_conversations``."""

    def __init__(self, length: int, start: int | None = None, parts: int = 1, everything: bool = False):
        self.length, self.start, self.parts, self.everything = length, start, parts, everything
        self.sums: dict[str, int] = dict.fromkeys(
            ("rows", "tokens", "targets", "marks", "answers", "ends", "several"), 0
        )
        self.starts, self.double_starts = 0, 0
        self.cuts: dict[str, int] = dict.fromkeys(("texts", "tokens", "targets", "answers"), 0)
        self.untaught, self.emptied, self.lengths = list[int](), list[int](), list[int]()
        self.unread_tools = 0
        """Number of rows whose tools the template does not read."""

    def add(self, number: int, texts: Sequence[EncodedChat]) -> None:
        """Add the texts of the row ``number``."""
        targets = sum(sum(text.targets) for text in texts)
        self._sum(self.sums, {"rows": 1, "targets": targets, "several": len(texts) > self.parts})
        for text in texts:
            self._add_text(text)
        if not targets:
            self.untaught.append(number)
        elif not any(any(text.targets[: self.kept(text)]) for text in texts):
            self.emptied.append(number)

    def _add_text(self, text: EncodedChat) -> None:
        size, limit = len(text.ids), self.kept(text)
        self.lengths.append(size)
        numbers = {"tokens": size, "marks": sum(text.marks), "answers": text.answers, "ends": text.ends}
        self._sum(self.sums, numbers)
        begins = self.start is not None and text.ids[:1] == (self.start,)
        doubled = begins and text.ids[1:2] == (self.start,)
        self.starts += begins and not doubled
        self.double_starts += doubled
        if size > limit:
            rest = text.targets[limit:]
            answers = sum(now and not later for now, later in pairwise((*rest, False)))
            self._sum(self.cuts, {"texts": 1, "tokens": size - limit, "targets": sum(rest), "answers": answers})

    def kept(self, text: EncodedChat) -> int:
        """Return the number of tokens of a text that truncation keeps."""
        return fitting(text, self.length, self.everything)

    @staticmethod
    def _sum(sums: dict[str, int], numbers: dict[str, int]) -> None:
        for name, number in numbers.items():
            sums[name] += number

    def audit(self, name: str) -> ChatAudit:
        """Return the sums as counts of the data set ``name``."""
        return ChatAudit(
            name=name,
            length=self.length,
            **self.sums,
            starts=self.starts,
            double_starts=self.double_starts,
            has_start=self.start is not None,
            untaught=tuple(self.untaught),
            lengths=tuple(self.lengths),
            cut=ChatCut(**self.cuts, rows=tuple(self.emptied)),
            unread_tools=self.unread_tools,
        )


def tools_sentence(count: int, rows: int) -> str:
    """Return the sentence on ``count`` of ``rows`` rows whose tools the chat template does not read."""
    have, template = "has" if count == 1 else "have", "the chat template does not read, so they are left out"
    return f"{count:,} of {counted(rows, 'row')} {have} tools, which {template}; --chat-template FILE gives another one"


def _rank(share: float, last: int) -> int:
    """Return the index of a quantile among ``last + 1`` ordered values."""
    return max(0, -(-round(share * 100) * (last + 1) // 100) - 1)


def _have(rows: int) -> str:
    return f"{counted(rows, 'row')} {'has' if rows == 1 else 'have'}"


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _listed(rows: Sequence[int]) -> str:
    more = f" and {len(rows) - _SHOWN:,} more" if len(rows) > _SHOWN else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {', '.join(f'{row:,}' for row in rows[:_SHOWN])}{more}"
