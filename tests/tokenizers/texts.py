"""Texts that break tokenizers, as hypothesis strategies and by hand."""

from __future__ import annotations

from hypothesis import strategies as st

# White space by Unicode, what only Python calls white space, marks that join words, signs outside of the first plane.
AWKWARD = (
    " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2003\u200b\u2028\u202f\u3000\ufeff\ufffd"
    "'!<>_0٣aéßд漢字\u0301\u200d👍🏽ǆ\x00\x7f"
)

UNICODE = st.text(max_size=60)
SPACED = st.text(alphabet=AWKWARD, max_size=60)
TEXTS = UNICODE | SPACED

BY_HAND = (
    "",
    " ",
    "\n",
    "a",
    "  a",
    "a  ",
    "a\n\nb\n \n c\n",
    "It's  John's;\tthey'll   go\r\n\r\n",
    "<unk> <|endoftext|> [UNK]",
    "naïve café — 漢字かな交じり文。 👍🏽 e\u0301",
    "x" * 400,
    " \n" * 100,
)
