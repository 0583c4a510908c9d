"""Search for the text of the outputs of a CTC model: the most probable token of each frame, or prefix beam search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

NextLogits = Callable[[tuple[int, ...]], np.ndarray]
"""Function from the tokens so far to the log-probabilities (V + 1) of the next, the last of which ends the text."""
_LEAST = -12.0
"""Log-probability below which a token of a frame does not extend any prefix; the best token of a frame always does."""


class ScoredText(NamedTuple):
    """Text that a search found: its tokens, and its score, a log-probability."""

    tokens: tuple[int, ...]
    score: float


def greedy(chances: np.ndarray, blank: int) -> ScoredText:
    """Return the tokens of the most probable alignment; ``chances`` (N, C): log-probabilities of each position.

    Equal neighbours are merged, then blanks are removed (Graves et al. 2006).
    """
    best = chances.argmax(1)
    begins = np.flatnonzero(np.append(True, best[1:] != best[:-1])) if len(best) else best
    tokens = tuple(int(token) for token in best[begins] if token != blank)
    return ScoredText(tokens, float(chances.max(1).sum()) if len(best) else 0.0)


class _Prefix(NamedTuple):
    """Log-probabilities of the alignments of a prefix that end with a blank, and of those that end with its last token.

    outside: weighted score of the language model and the bonus.
    """

    blank: float = -math.inf
    token: float = -math.inf
    outside: float = 0.0

    @property
    def inside(self) -> float:
        return _sum(self.blank, self.token)

    @property
    def score(self) -> float:
        return self.inside + self.outside


def beam_search(
    chances: np.ndarray,
    blank: int,
    beams: int,
    language: NextLogits | None = None,
    weight: float = 0.5,
    bonus: float = 0.0,
) -> list[ScoredText]:
    """Return up to ``beams`` texts, the best first, by prefix beam search (Hannun et al. 2014).

    chances (N, C): log-probabilities of each position. The score of a text is log p(text | sound) + weight · log
    p(text) + bonus · number of tokens, with p(text) of ``language``, the end of the text included.
    """
    prefixes = {(): _Prefix(blank=0.0)}
    ahead = _Ahead(language, weight, bonus)
    for row in chances:
        following = dict[tuple[int, ...], _Prefix]()
        tokens = [int(token) for token in np.flatnonzero(row > _LEAST) if token != blank]
        best = int(row.argmax())
        if best != blank and best not in tokens:
            tokens.append(best)
        for tokens_before, prefix in prefixes.items():
            _extend(following, tokens_before, prefix, row, tokens, blank, ahead)
        ranked = sorted(following.items(), key=lambda item: -item[1].score)
        prefixes = dict(ranked[:beams])
    ended = [ScoredText(tokens, prefix.score + ahead.end(tokens)) for tokens, prefix in prefixes.items()]
    return sorted(ended, key=lambda text: -text.score)


class _Ahead:
    """Weighted scores of the language model for the next token of a prefix, and for its end."""

    def __init__(self, language: NextLogits | None, weight: float, bonus: float):
        self.language, self.weight, self.bonus = language, weight, bonus
        self.memo = dict[tuple[int, ...], np.ndarray]()

    def _scores(self, tokens: tuple[int, ...]) -> np.ndarray:
        assert self.language is not None
        if tokens not in self.memo:
            self.memo[tokens] = self.weight * self.language(tokens)
        return self.memo[tokens]

    def token(self, tokens: tuple[int, ...], following: int) -> float:
        """Return the score of the token ``following`` after ``tokens``."""
        return self.bonus + (0.0 if self.language is None else float(self._scores(tokens)[following]))

    def end(self, tokens: tuple[int, ...]) -> float:
        """Return the score of the end of the text after ``tokens``."""
        return 0.0 if self.language is None else float(self._scores(tokens)[-1])


def _extend(
    following: dict[tuple[int, ...], _Prefix],
    tokens: tuple[int, ...],
    prefix: _Prefix,
    row: np.ndarray,
    extensions: Sequence[int],
    blank: int,
    ahead: _Ahead,
) -> None:
    """Add to ``following`` the prefixes that a position with the log-probabilities ``row`` makes of one prefix."""
    last = tokens[-1] if tokens else None
    _add(following, tokens, prefix.outside, blank=prefix.inside + row[blank])
    for token in extensions:
        chance = float(row[token])
        if token == last:
            _add(following, tokens, prefix.outside, token=prefix.token + chance)
        begun = prefix.blank if token == last else prefix.inside
        if begun > -math.inf:
            outside = prefix.outside + ahead.token(tokens, token)
            _add(following, (*tokens, token), outside, token=begun + chance)


def _add(
    following: dict[tuple[int, ...], _Prefix],
    tokens: tuple[int, ...],
    outside: float,
    blank: float = -math.inf,
    token: float = -math.inf,
) -> None:
    before = following.get(tokens, _Prefix())
    following[tokens] = _Prefix(_sum(before.blank, blank), _sum(before.token, token), outside)


def _sum(a: float, b: float) -> float:
    """Return log(exp(a) + exp(b))."""
    if a < b:
        a, b = b, a
    return a if b == -math.inf else a + math.log1p(math.exp(b - a))


def aligned(chances: np.ndarray, tokens: Sequence[int], blank: int) -> list[int]:
    """Return the position of each token in the most probable alignment (Viterbi); ``chances`` (N, C): log p.

    It is the position at which the token is most probable among those that it takes. Without an alignment, as the
    text is too long, tokens are spread evenly.
    """
    count, states = len(chances), np.full(2 * len(tokens) + 1, blank)
    if not tokens:
        return []
    states[1::2] = tokens
    skips = np.zeros(len(states), bool)
    skips[3::2] = states[3::2] != states[1:-2:2]
    scores, moves = np.full(len(states), -np.inf), np.zeros((count, len(states)), np.int8)
    scores[:2] = chances[0, states[:2]]
    for step in range(1, count):
        ways = np.full((3, len(states)), -np.inf)
        ways[0], ways[1, 1:], ways[2, 2:] = scores, scores[:-1], np.where(skips[2:], scores[:-2], -np.inf)
        moves[step] = ways.argmax(0)
        scores = ways.max(0) + chances[step, states]
    place = len(states) - 1 - int(scores[-2] > scores[-1])
    if scores[place] == -np.inf:
        return [min(count - 1, i * count // len(tokens)) for i in range(len(tokens))]
    best = dict[int, int]()
    for step in range(count - 1, -1, -1):
        token = place // 2
        if place % 2 and (token not in best or chances[step, states[place]] >= chances[best[token], states[place]]):
            best[token] = step
        place -= int(moves[step, place])
    return [best[i] for i in range(len(tokens))]
