"""Division of the tokens of a window into segments by the timestamps among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

TIME_STEP = 0.02
"""Seconds from a timestamp token to the next."""


class TokenSegment(NamedTuple):
    """Tokens of a segment, timestamps included, with its times in steps of ``TIME_STEP`` from the window's start."""

    start: int
    end: int
    tokens: list[int]


def divide(tokens: Sequence[int], first_time: int, steps: int) -> tuple[list[TokenSegment], int | None]:
    """Return (segments, step at which the next window begins) of the tokens of a window of ``steps`` steps.

    A pair of timestamps ends a segment and begins the next. If the window's last segment has no end, it was cut there,
    and the next window begins at the last pair; None: after this window. ``first_time``: id of the timestamp 0.00;
    larger ids are later.
    """
    timed = [token >= first_time for token in tokens]
    borders = [i + 1 for i in range(len(tokens) - 1) if timed[i] and timed[i + 1]]
    if not borders:
        last = next((token for token in reversed(tokens) if token >= first_time), first_time) - first_time
        return ([TokenSegment(0, last or steps, list(tokens))] if tokens else []), None
    whole = timed[-2:] == [False, True]
    segments, begin = list[TokenSegment](), 0
    for border in (*borders, *((len(tokens),) if whole else ())):
        part = list(tokens[begin:border])
        segments.append(TokenSegment(part[0] - first_time, part[-1] - first_time, part))
        begin = border
    return segments, None if whole else tokens[begin - 1] - first_time
