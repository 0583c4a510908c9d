"""What a model expects round a text: [CLS] … [SEP], <s> … </s>, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tokenizers


class Framed(NamedTuple):
    """``ids`` of a text in its frame; ``whole``: how many there would be if nothing were cut."""

    ids: list[int]
    whole: int


def framed(core: tokenizers.Tokenizer, specials: Mapping[str, int], text: tokenizers.Encoding, most: int | None = None) -> Framed:
    """The ids of ``text``, cut at its end so that with the frame there are ``most`` at most.

    The frame is that of the tokenizer's template. Where it has none, as in the vocabulary files of old, it is the mark ``cls`` before and
    ``sep`` behind, each where the tokenizer has it.
    """
    added = core.num_special_tokens_to_add(False)
    before, behind = ([specials[role]] if not added and role in specials else [] for role in ("cls", "sep"))
    frame = added + len(before) + len(behind)
    whole = len(text.ids) + frame
    if most is not None and whole > most:
        text.truncate(max(0, most - frame))
    inner = core.post_process(text, None, True).ids if added else text.ids
    return Framed([*before, *inner, *behind], whole)
