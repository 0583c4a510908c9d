"""Gain of speculative decoding: measured speed of passes that verify proposals, relative to plain decoding steps.

    gain = (tokens per second of passes with proposals) / (tokens per second of plain steps)

Both are measured during the same generation, because the speed of a machine changes from minute to minute. A generation
is a sequence of periods:

    plain steps ── trial with proposals ─┬─ gain ≥ 1 ── two plain steps ── proposals ── gain? …
                          │              │
                          └── plain steps ── gain < 1: twice as many after each trial that lost
"""

from __future__ import annotations

from collections import deque

FIRST = 3
"""Number of plain steps at the start."""
TRIAL = 6
"""Number of passes with proposals in a trial, after which their gain is decided."""
PERIOD = 64
"""Number of passes with proposals between two decisions, while the gain is at least 1."""
CHECK = 2
"""Number of plain steps between two periods with proposals, to measure the speed of plain steps again."""
REST, LONGEST_REST = 48, 1536
"""Number of plain steps after a trial with gain below 1: initial and maximum."""
KEPT = 12
"""Number of latest steps, of either kind, over which speeds are measured."""


class Gain:
    """Measured gain, and the decision whether the next step has proposals.

    The first step of a period is not measured, because kernels for new shapes may be selected in it.
    """

    def __init__(self, adaptive: bool = True):
        """Begin with steps without proposals. ``adaptive``: if False, all steps have proposals, whatever the gain."""
        self.adaptive = adaptive
        self._plain: deque[tuple[float, float]] = deque(maxlen=KEPT)
        """(tokens per row, seconds) of the latest plain steps."""
        self._proposing: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._sum = (0.0, 0.0)
        self._on, self._lost, self._began = not adaptive, True, True
        self._left, self._rest = FIRST, REST

    @property
    def proposes(self) -> bool:
        """True if the next step should have proposals."""
        return self._on

    @property
    def latest(self) -> float | None:
        """Gain of the latest passes with proposals; None before steps of both kinds are measured."""
        return _ratio(_speed(self._proposing), _speed(self._plain))

    @property
    def whole(self) -> float | None:
        """Speed of all recorded steps relative to the latest plain steps; None before plain steps are measured."""
        return _ratio(_speed([self._sum]), _speed(self._plain))

    def record(self, tokens: float, seconds: float, proposed: bool) -> None:
        """Record a step that yielded ``tokens`` per row; ``proposed``: it verified proposals, or read tokens again
        because of them.
        """
        self._sum = self._sum[0] + tokens, self._sum[1] + seconds
        began, self._began = self._began, False
        if not began:
            (self._proposing if proposed else self._plain).append((tokens, seconds))
        if self.adaptive and (proposed or not self._on):  # a step without anything to propose costs nothing
            self._left -= 1
            if not self._left:
                self._decide()

    def _decide(self) -> None:
        """Start the next period: proposals after plain steps, and plain steps after proposals."""
        if not self._on:
            self._on, self._left = True, TRIAL if self._lost else PERIOD
            if self._lost:
                self._proposing.clear()
        else:
            self._on, self._lost = False, (self.latest or 0.0) < 1.0
            self._left, self._rest = (self._rest, min(2 * self._rest, LONGEST_REST)) if self._lost else (CHECK, REST)
        self._began = True


def _speed(steps: deque[tuple[float, float]] | list[tuple[float, float]]) -> float | None:
    """Return the tokens per second over all ``steps``; None if they took no time."""
    seconds = sum(duration for _, duration in steps)
    return sum(tokens for tokens, _ in steps) / seconds if seconds else None


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None
