"""Functions on spans of a context: windows, the tokens of an answer, and the span with the best logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.ops.at_least_single import at_least_single

Offsets = Sequence[tuple[int, int]]
"""Character range [begin, end) of each token of a context."""


class TokenSpan(NamedTuple):
    """Tokens ``first`` to ``last`` of a context, inclusive."""

    first: int
    last: int


def windows(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Return the ranges [begin, end) of overlapping windows of at most ``room`` tokens over ``length`` tokens.

    Windows start ``stride`` tokens apart. ``stride`` is reduced to ``room`` if it is larger, so that every token is
    covered. A context without tokens has one empty window.
    """
    step, ranges = min(stride, room), [(0, min(room, length))]
    while ranges[-1][1] < length:
        begin = ranges[-1][0] + step
        ranges.append((begin, min(begin + room, length)))
    return ranges


def span_of(begin: int, end: int, offsets: Offsets) -> TokenSpan | None:
    """Find the span of tokens that overlap the characters [begin, end); None if no token does.

    ``offsets``: character range of each token.
    """
    indices = [i for i, (b, e) in enumerate(offsets) if max(b, begin) < min(e, end)]
    return TokenSpan(indices[0], indices[-1]) if indices else None


def characters_of(span: TokenSpan, context: str, offsets: Offsets) -> tuple[int, int]:
    """Return the character range [begin, end) of ``span`` in ``context``, without surrounding white space."""
    begin, end = offsets[span.first][0], offsets[span.last][1]
    text = context[begin:end]
    begin += len(text) - len(text.lstrip())
    return begin, begin + len(text.strip())


class Best(NamedTuple):
    """Best answer span of each row; all fields (B,).

    first <= last: positions of the most probable span.   score: s_first + e_last of this span, -∞ without a span.
    total: log-sum-exp of the scores of all spans.   none: s_0 + e_0, the score of "no answer".
    """

    first: Tensor
    last: Tensor
    score: Tensor
    total: Tensor
    none: Tensor


def best_spans(logits: Tensor, begin: Tensor, end: Tensor, longest: int) -> Best:
    """Find the best span of at most ``longest`` positions inside [begin, end) of each row.

    logits (B, N, 2): scores of first and last position; begin, end (B,).
    """
    place = torch.arange(logits.shape[1], device=logits.device)
    outside = (place < begin[:, None]) | (place >= end[:, None])
    starts, ends = at_least_single(logits).masked_fill(outside[..., None], -torch.inf).unbind(-1)
    beyond = ends.new_full((len(ends), longest - 1), -torch.inf)
    scores = starts[..., None] + torch.cat((ends, beyond), 1).unfold(1, longest, 1)  # (B, N, longest): from i to i + k
    flat = scores.flatten(1)
    score, at = flat.max(1)
    first = at // longest
    return Best(first, first + at % longest, score, flat.logsumexp(1), at_least_single(logits[:, 0]).sum(-1))
