"""What a model expects round a text: [CLS] … [SEP], <s> … </s>, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tokenizers


class Frame(NamedTuple):
    """The ids before a text, and those behind it."""

    before: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """How many ids there are."""
        return len(self.before) + len(self.behind)


class Framed(NamedTuple):
    """``ids`` of a text in its frame; ``whole``: how many there would be if nothing were cut."""

    ids: list[int]
    whole: int


def frame_of(core: tokenizers.Tokenizer, specials: Mapping[str, int]) -> Frame:
    """That of the tokenizer's template.

    Where it has none, as in the vocabulary files of old, it is the mark ``cls`` before and ``sep`` behind, each where the tokenizer has it.
    """
    for text in ("a", "the", "1"):
        encoding = core.encode(text, add_special_tokens=True) if core.num_special_tokens_to_add(False) else None
        if encoding is not None and 0 in encoding.special_tokens_mask:
            begin = encoding.special_tokens_mask.index(0)
            end = len(encoding.ids) - encoding.special_tokens_mask[::-1].index(0)
            return Frame(tuple(encoding.ids[:begin]), tuple(encoding.ids[end:]))
    before, behind = ((specials[role],) if role in specials else () for role in ("cls", "sep"))
    return Frame(before, behind)


def framed(frame: Frame, ids: list[int], most: int | None = None) -> Framed:
    """``ids`` in their frame, cut at their end so that there are ``most`` in all at most, but no less than the frame."""
    whole = len(ids) + frame.size
    kept = ids if most is None else ids[: max(0, most - frame.size)]
    return Framed([*frame.before, *kept, *frame.behind], whole)
