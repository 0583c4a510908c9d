"""Special tokens that a model expects around one text or two: [CLS] … [SEP], <s> … </s></s> … </s>, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tokenizers
from tokenizers import processors


class Mark(NamedTuple):
    """Special token around a text: its id and its token type (segment id)."""

    id: int
    type: int = 0


class Framed(NamedTuple):
    """Ids of one text or two with special tokens around them, as a model reads them.

    ``types``: token type (segment id) of each id; ``begins``: index of the first id of each text; ``whole``: number of
    ids without truncation.
    """

    ids: list[int]
    types: list[int]
    begins: list[int]
    whole: int


class Frame(NamedTuple):
    """Special tokens to put around one text or two texts, such as [CLS] … [SEP].

    ``marks[k]``: special tokens before text k; the last entry follows all texts. ``types[k]``: token type (segment id)
    of text k.
    """

    marks: tuple[tuple[Mark, ...], ...] = ((), ())
    types: tuple[int, ...] = (0,)

    @property
    def before(self) -> tuple[int, ...]:
        """Ids of the special tokens before the first text."""
        return tuple(mark.id for mark in self.marks[0])

    @property
    def behind(self) -> tuple[int, ...]:
        """Ids of the special tokens after the last text."""
        return tuple(mark.id for mark in self.marks[-1])

    @property
    def size(self) -> int:
        """Number of special tokens that are put around the texts."""
        return sum(map(len, self.marks))

    def around(self, *texts: Sequence[int], whole: int | None = None) -> Framed:
        """Put the special tokens around the ids of ``texts``. ``whole``: number of ids before truncation; default:
        nothing was truncated.
        """
        framed_ids = Framed([], [], [], self.size + sum(map(len, texts)) if whole is None else whole)
        _put(framed_ids, self.marks[0])
        for text, kind, marks in zip(texts, self.types, self.marks[1:], strict=True):
            framed_ids.begins.append(len(framed_ids.ids))
            framed_ids.ids.extend(text)
            framed_ids.types.extend([kind] * len(text))
            _put(framed_ids, marks)
        return framed_ids


def _put(framed_ids: Framed, marks: Sequence[Mark]) -> None:
    framed_ids.ids.extend(mark.id for mark in marks)
    framed_ids.types.extend(mark.type for mark in marks)


def frame_of(core: tokenizers.Tokenizer, specials: Mapping[str, int], texts: int = 1) -> Frame:
    """Return the special tokens that the template (post-processor) of ``core`` puts around one text or two texts.
    ``specials``: ids of special tokens by role.

    Default without a template (older vocabulary files): ``cls`` before and ``sep`` after the text, if the tokenizer has
    them. Two texts: ``cls`` first ``sep`` second ``sep``, where the second text and its ``sep`` have type 1.
    """
    frame = _template(core, texts) if core.num_special_tokens_to_add(texts == 2) else None
    if frame is not None:
        return frame
    if texts == 1:
        before, behind = ((Mark(specials[role]),) if role in specials else () for role in ("cls", "sep"))
        return Frame((before, behind))
    (before, behind), sep = frame_of(core, specials).marks, ()
    if not behind and "sep" in specials:
        sep = (Mark(specials["sep"]),)
    return Frame((before, behind or sep, tuple(mark._replace(type=1) for mark in behind or sep)), (0, 1))


def with_template(core: tokenizers.Tokenizer, frames: Sequence[Frame]) -> tokenizers.Tokenizer:
    """Return a copy of ``core`` with a template (post-processor) that puts special tokens around texts.

    Other libraries read the template from the saved file. ``frames``: special tokens around one text, and around two.
    Returns ``core`` itself if it has a template already, or if the frame for one text is empty.
    """
    if core.num_special_tokens_to_add(False) or not frames[0].size:
        return core
    tokens = {mark.id: core.id_to_token(mark.id) for frame in frames for marks in frame.marks for mark in marks}
    pieces = [
        [
            *(f"{tokens[mark.id]}:{mark.type}" for mark in frame.marks[0]),
            *(
                piece
                for name, kind, marks in zip("AB", frame.types, frame.marks[1:], strict=False)
                for piece in (f"${name}:{kind}", *(f"{tokens[mark.id]}:{mark.type}" for mark in marks))
            ),
        ]
        for frame in frames
    ]
    single, pair = pieces
    specials = [(token, index) for index, token in tokens.items()]
    template = processors.TemplateProcessing(single, pair, specials)
    copy = tokenizers.Tokenizer.from_str(core.to_str())
    before = copy.post_processor
    copy.post_processor = template if before is None else processors.Sequence([before, template])
    return copy


def _template(core: tokenizers.Tokenizer, texts: int) -> Frame | None:
    """Infer the special tokens around texts by encoding samples.

    Returns None if every sample fails: all its words are unknown, or the template reorders texts.
    """
    for text in ("a", "the", "1"):
        encoding = core.encode(text, text if texts == 2 else None, add_special_tokens=True)
        owners = encoding.sequence_ids
        if [owner for owner in dict.fromkeys(owners) if owner is not None] != list(range(texts)):
            continue
        begins = [owners.index(k) for k in range(texts)]
        ends = [len(owners) - owners[::-1].index(k) for k in range(texts)]
        gaps = zip([0, *ends], [*begins, len(owners)], strict=True)
        marks = [Mark(*pair) for pair in zip(encoding.ids, encoding.type_ids, strict=True)]
        return Frame(
            tuple(tuple(marks[slice(*gap)]) for gap in gaps), tuple(encoding.type_ids[begin] for begin in begins)
        )
    return None


def shortened(lengths: Sequence[int], room: int) -> tuple[int, ...]:
    """Return the lengths in tokens of two texts after truncation to at most ``room`` tokens in total.

    ``lengths``: lengths before truncation. The longer text is truncated first, then both to half of ``room``.
    """
    short, long = sorted(lengths)
    if short + long > room:
        short = min(short, max(0, room) // 2)
        long = max(0, room) - short
    return (short, long) if lengths[0] <= lengths[1] else (long, short)


def framed(frame: Frame, ids: list[int], most: int | None = None) -> Framed:
    """Put the special tokens of ``frame`` around ``ids``. The end of ``ids`` is truncated so that there are at most
    ``most`` ids in all.
    """
    truncated = ids if most is None else ids[: max(0, most - frame.size)]
    return frame.around(truncated, whole=len(ids) + frame.size)
