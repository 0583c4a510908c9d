"""Counts of what is learned, against counts by hand."""

from __future__ import annotations

import pytest

from qkv.system.errors import UserError
from qkv.tasks.chats.audit import ChatAudit, ChatCut, audit_conversations, fitting
from qkv.tokenizers.chat_targets import EncodedChat

START = 1


def text(pattern: str, answers: int, ends: int, begin: tuple[int, ...] = ()) -> EncodedChat:
    """A text from a pattern of kinds: "m" is a mark, "c" context and "t" a target."""
    ids = (*begin, *range(10, 10 + len(pattern) - len(begin)))
    return EncodedChat(ids, tuple(x == "t" for x in pattern), tuple(x == "m" for x in pattern), ends, answers)


ROWS = {
    1: [text("mccmtttm", 1, 1)],
    2: [text("mcmttmcmtt", 2, 1, (START,))],
    4: [text("mccm", 0, 0)],
    5: [text("mcmt", 1, 1, (START, START)), text("mcmcmttt", 1, 1)],
}


def audit(length: int = 100) -> ChatAudit:
    return audit_conversations("the file", ROWS, length, START)


def test_counts_are_those_by_hand() -> None:
    counts = audit()
    assert (counts.rows, counts.texts, counts.tokens) == (4, 5, 34)
    assert (counts.targets, counts.marks) == (3 + 4 + 1 + 3, 3 + 4 + 2 + 2 + 3)
    assert (counts.answers, counts.ends, counts.several) == (5, 4, 1)
    assert (counts.starts, counts.double_starts) == (1, 1)
    assert counts.untaught == (4,)
    assert counts.lengths == (8, 10, 4, 4, 8)
    assert counts.quantiles == {"minimum": 4, "median": 8, "90 %": 10, "99 %": 10, "maximum": 10}
    assert counts.cut == ChatCut()
    assert counts.headline == "11 of 34 tokens are targets; 1 row has none; the end is a target in 4 of 5 answers"
    counts.check()


def test_truncation_is_counted_by_hand() -> None:
    """Of at most six tokens, no answer of row 1 and of the last text ends; row 2 keeps "mcmtt"."""
    counts = audit(6)
    assert counts.cut == ChatCut(texts=3, tokens=8 + 5 + 8, targets=3 + 2 + 3, answers=3, rows=(1,))
    assert (
        "3 texts of 5 are longer than 6 tokens; what comes after the last answer that fits is left out: "
        "21 tokens with 8 targets, and 3 answers"
    ) in counts.warnings
    assert "of 1 row truncation leaves no target: row 1" in counts.warnings
    assert audit(8).cut == ChatCut(texts=1, tokens=5, targets=2, answers=1)


@pytest.mark.parametrize(
    ("pattern", "length", "kept"),
    [("mcttm", 5, 5), ("mcttm", 4, 4), ("mcttm", 3, 0), ("mttmtt", 5, 3), ("mttmtt", 3, 3), ("mttmtt", 2, 0)],
)
def test_a_text_is_cut_after_an_answer(pattern: str, length: int, kept: int) -> None:
    assert fitting(text(pattern, 1, 1), length) == kept
    assert fitting(text(pattern, 1, 1), length, everything=True) == min(length, len(pattern))


def test_everything_is_cut_at_the_limit() -> None:
    counts = audit_conversations("x", {1: [text("mttttt", 1, 1)]}, 4, everything=True)
    assert counts.cut == ChatCut(texts=1, tokens=2, targets=2, answers=1)


def test_the_summary_names_no_row() -> None:
    assert audit(6).summary[0] == audit(6).headline
    assert not any("row 1" in sentence or "row 4" in sentence for sentence in audit(6).summary[1:])
    assert sum("longer than 6" in sentence for sentence in audit(6).summary) == 1


def test_what_teaches_nothing_is_refused() -> None:
    nothing = audit_conversations("chat.jsonl", {3: [text("mcm", 0, 0)]}, 10)
    with pytest.raises(UserError, match=r"no token of chat\.jsonl is a target, so a run on it would learn nothing"):
        nothing.check()
    cut = audit_conversations("chat.jsonl", {1: [text("mcmtt", 1, 1)]}, 3)
    with pytest.raises(UserError, match="truncation to 3 tokens removes every target"):
        cut.check()
    with pytest.raises(UserError, match="no conversation that can be used"):
        audit_conversations("chat.jsonl", {}, 3).check()


def test_chosen_and_rejected_answers_are_no_several_texts() -> None:
    pair = {1: [text("mt", 1, 1), text("mtt", 1, 1)]}
    assert audit_conversations("x", pair, 9, parts=2).several == 0
    assert audit_conversations("x", pair, 9).several == 1


def test_only_problems_are_warnings() -> None:
    assert audit_conversations("x", {1: [text("mct", 1, 1)]}, 9, START).warnings == ()
    sentences = " ".join(audit(4).warnings)
    assert all(
        words in sentences
        for words in ("1 row has no target: row 4", "1 of 5 answers teach no end", "two start tokens")
    )


def test_plain_counts_have_no_list_of_lengths() -> None:
    plain = audit().plain()
    assert plain["texts"] == 5
    assert plain["cut"]["texts"] == 0
    assert "lengths" not in plain
