"""Suggestions in messages: only names within two edits, else what is allowed."""

from __future__ import annotations

import pytest

from qkv.system.errors import nearest

KNOWN = ("attention", "attribute", "width", "norm", "gru", "lr", "linear_attention")


@pytest.mark.parametrize(("word", "meant"), [
    ("atention", "attention"),
    ("atentoin", "attention"),  # one left out, two swapped
    ("attentionss", "attention"),
    ("widht", "width"),
    ("nrom", "norm"),
    ("gr", "gru"),
    ("l", None),  # no letter of it would be left to go by
    ("lstm", None),
    ("wth", None),  # two edits of a short word
    ("attn", None),
    ("linear_attn", None),
    ("attestations", None),
    ("", None),
])  # fmt: skip
def test_a_name_is_suggested_within_two_edits_alone(word: str, meant: str | None) -> None:
    said = nearest(word, KNOWN)
    assert said == (f"did you mean {meant!r}?" if meant else "allowed: " + ", ".join(sorted(KNOWN)))


def test_the_closest_is_taken() -> None:
    assert nearest("position", ["positional", "positions", "postion"]) == "did you mean 'positions'?"
    assert nearest("layer_norn", []) == "allowed: "


def test_a_long_list_is_cut() -> None:
    said = nearest("nothing like it", [f"file{i:04}" for i in range(5000)])
    assert said.startswith("allowed: file0000, file0001, ")
    assert said.endswith(" and 4,940 more")
    assert nearest("zzz", ["b", "a"]) == "allowed: a, b"
