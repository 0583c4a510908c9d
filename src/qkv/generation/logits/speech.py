"""Rules for the tokens of a transcript, which a decoder writes from a window of speech (Whisper, Radford et al. 2022).

    <sot> ─ forced: language, task ─┬─ text …                                       <end>      without timestamps
                                    └─ <0.00> text <2.40> <2.40> text <5.00>        <end>      with timestamps

Timestamps are tokens after all others, one every 20 ms. The rules: the first token is a timestamp of at most
``latest_start``; timestamps come in pairs, the end of a segment and the start of the next, and never go back; and if
all timestamps together are more probable than the best other token, a timestamp follows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from qkv.generation.logits.forbid import columns


class LogitRule(Protocol):
    """Rule that changes the logits of one row, in place, before a token is sampled from them."""

    def __call__(self, logits: Tensor, written: Sequence[int]) -> None:
        """Change logits (V). ``written``: new tokens of the row so far, without its prompt."""


@dataclass
class TranscriptRule:
    """Rule of one window of speech, for a row whose prompt ends with the token that starts a transcript.

    end: id of the end token. first_time: id of the timestamp 0.00; larger ids are later timestamps. forced: ids of the
    first new tokens, such as those of the language and the task. suppressed: ids that are never written.
    first_suppressed: ids that are not written directly after the forced ones. timed: True if timestamps are written.
    latest_start: largest index of the first timestamp, in steps of 20 ms; None for no limit. no_speech: id of the token
    for silence, or None.
    """

    end: int
    first_time: int
    forced: Sequence[int] = ()
    suppressed: Sequence[int] = ()
    first_suppressed: Sequence[int] = ()
    timed: bool = True
    latest_start: int | None = None
    no_speech: int | None = None
    silence: float = field(default=math.nan, init=False)
    """Probability of ``no_speech`` as the first new token, before any rule; NaN before the first token."""

    def __call__(self, logits: Tensor, written: Sequence[int]) -> None:
        if not written and self.no_speech is not None:
            self.silence = float(logits.softmax(-1)[self.no_speech])
        if len(written) < len(self.forced):
            token = self.forced[len(written)]
            logits[:token] = logits[token + 1 :] = -math.inf
            return
        words = written[len(self.forced) :]
        for ids in (self.suppressed, *(() if words else (self.first_suppressed,))):
            if ids:
                logits.index_fill_(0, columns(tuple(ids), len(logits)).to(logits.device), -math.inf)
        if self.timed:
            self._time(logits, words)

    def _time(self, logits: Tensor, words: Sequence[int]) -> None:
        """Apply the rules of timestamps. ``words``: tokens after the forced ones."""
        first = self.first_time
        logits[first - 1] = -math.inf  # the token for a transcript without timestamps
        ends = bool(words) and words[-1] >= first
        paired = len(words) < 2 or words[-2] >= first
        if ends and paired:
            logits[first:] = -math.inf
        elif ends:
            logits[: self.end] = -math.inf
        latest = next((token for token in reversed(words) if token >= first), None)
        if latest is not None:
            logits[first : latest + (not (ends and not paired))] = -math.inf
        if not words:
            logits[:first] = -math.inf
            if self.latest_start is not None:
                logits[first + self.latest_start + 1 :] = -math.inf
        if logits[first:].logsumexp(0) > logits[:first].max():
            logits[:first] = -math.inf
