"""What a model expects round a text, or round two: [CLS] … [SEP], <s> … </s></s> … </s>, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tokenizers


class Mark(NamedTuple):
    """A special token and its type, which says to which text it belongs."""

    id: int
    type: int = 0


class Framed(NamedTuple):
    """``ids`` of texts in their frame and the ``types`` of all of them; ``begins``: where each text begins; ``whole``: how many ids there
    would be if nothing were cut."""

    ids: list[int]
    types: list[int]
    begins: list[int]
    whole: int


class Frame(NamedTuple):
    """``marks[k]`` stand before text k, the last behind all of them; ``types[k]`` is the type of the tokens of text k."""

    marks: tuple[tuple[Mark, ...], ...] = ((), ())
    types: tuple[int, ...] = (0,)

    @property
    def before(self) -> tuple[int, ...]:
        """The ids before the first text."""
        return tuple(mark.id for mark in self.marks[0])

    @property
    def behind(self) -> tuple[int, ...]:
        """Those behind the last one."""
        return tuple(mark.id for mark in self.marks[-1])

    @property
    def size(self) -> int:
        """How many marks there are."""
        return sum(map(len, self.marks))

    def around(self, *texts: Sequence[int], whole: int | None = None) -> Framed:
        """The ids of ``texts``, as many as the frame is for, in it. ``whole``: see ``Framed``, default: all are here."""
        found = Framed([], [], [], self.size + sum(map(len, texts)) if whole is None else whole)
        _put(found, self.marks[0])
        for text, kind, marks in zip(texts, self.types, self.marks[1:], strict=True):
            found.begins.append(len(found.ids))
            found.ids.extend(text)
            found.types.extend([kind] * len(text))
            _put(found, marks)
        return found


def _put(found: Framed, marks: Sequence[Mark]) -> None:
    found.ids.extend(mark.id for mark in marks)
    found.types.extend(mark.type for mark in marks)


def frame_of(core: tokenizers.Tokenizer, specials: Mapping[str, int], texts: int = 1) -> Frame:
    """That of the tokenizer's template for one text or two.

    Where it has none, as in the vocabulary files of old, it is the mark ``cls`` before and ``sep`` behind, each where the tokenizer has it.
    Two texts are then ``cls`` first ``sep`` second ``sep``; the second with the mark behind it is of type 1.
    """
    found = _template(core, texts) if core.num_special_tokens_to_add(texts == 2) else None
    if found is not None:
        return found
    if texts == 1:
        before, behind = ((Mark(specials[role]),) if role in specials else () for role in ("cls", "sep"))
        return Frame((before, behind))
    (before, behind), sep = frame_of(core, specials).marks, ()
    if not behind and "sep" in specials:
        sep = (Mark(specials["sep"]),)
    return Frame((before, behind or sep, tuple(mark._replace(type=1) for mark in behind or sep)), (0, 1))


def _template(core: tokenizers.Tokenizer, texts: int) -> Frame | None:
    """What the tokenizer puts round texts that it knows, None if it knows none of a few, or does not leave them in their order."""
    for text in ("a", "the", "1"):
        encoding = core.encode(text, text if texts == 2 else None, add_special_tokens=True)
        owners = encoding.sequence_ids
        if [owner for owner in dict.fromkeys(owners) if owner is not None] != list(range(texts)):
            continue
        begins = [owners.index(k) for k in range(texts)]
        ends = [len(owners) - owners[::-1].index(k) for k in range(texts)]
        gaps = zip([0, *ends], [*begins, len(owners)], strict=True)
        marks = [Mark(*pair) for pair in zip(encoding.ids, encoding.type_ids, strict=True)]
        return Frame(tuple(tuple(marks[slice(*gap)]) for gap in gaps), tuple(encoding.type_ids[begin] for begin in begins))
    return None


def shortened(lengths: Sequence[int], room: int) -> tuple[int, ...]:
    """How many tokens each of two texts keeps, at most ``room`` together: the longer one is cut first, and if that is not enough both to
    half of it."""
    short, long = sorted(lengths)
    if short + long > room:
        short = min(short, max(0, room) // 2)
        long = max(0, room) - short
    return (short, long) if lengths[0] <= lengths[1] else (long, short)


def framed(frame: Frame, ids: list[int], most: int | None = None) -> Framed:
    """``ids`` in their frame, cut at their end so that there are ``most`` in all at most, but no less than the frame."""
    kept = ids if most is None else ids[: max(0, most - frame.size)]
    return frame.around(kept, whole=len(ids) + frame.size)
