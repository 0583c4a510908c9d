"""Counts of what is learned, against counts by hand."""

from __future__ import annotations

import pytest

from qkv.system.errors import UserError
from qkv.tasks.chats.audit import ChatAudit, Cut, audit_conversations
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
    assert counts.cut == Cut()
    assert counts.headline == "11 of 34 tokens are targets; 1 row has none; the end is a target in 4 of 5 answers"
    counts.check()


def test_truncation_is_counted_by_hand() -> None:
    """After four tokens: "tttm" of row 1, "tmcmtt" of row 2, nothing of row 4, "mttt" of row 5."""
    counts = audit(4)
    assert counts.cut == Cut(texts=3, tokens=4 + 6 + 4, targets=3 + 3 + 3, answers=1 + 2 + 1, rows=(1,))
    assert any("3 texts of 5 are longer than 4 tokens" in sentence for sentence in counts.warnings)
    assert any("of 1 row no target is left: row 1" in sentence for sentence in counts.warnings)
    assert audit(5).cut.rows == ()


def test_an_end_before_the_limit_is_not_cut() -> None:
    """Of "ttc", the answer ends before the limit of two; of "ttt", after it."""
    counts = audit_conversations("x", {1: [text("ttc", 1, 1)], 2: [text("ttt", 1, 1)]}, 2)
    assert (counts.cut.targets, counts.cut.answers) == (1, 1)


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
