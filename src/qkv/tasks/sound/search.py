"""Search for the text of the outputs of a CTC model: the most probable token of each frame, or prefix beam search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

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
    p(text) + bonus · number of tokens; p(text) is the probability from ``language``, including the end of the text.
    """
    ahead = _Ahead(language, weight, bonus, chances.shape[1])
    prefixes = _Prefixes.empty()
    for row in chances.astype(np.float64):
        read = row > _LEAST
        read[row.argmax()] = True
        read[blank] = False
        prefixes = prefixes.after(row, np.flatnonzero(read), blank, beams, ahead)
    ended = [
        ScoredText(tokens, score + ahead.end(tokens))
        for tokens, score in zip(prefixes.tokens, prefixes.scores.tolist(), strict=True)
    ]
    return sorted(ended, key=lambda text: -text.score)


class _Ahead:
    """Weighted scores of the language model for the next token of a prefix, and for its end."""

    def __init__(self, language: NextLogits | None, weight: float, bonus: float, classes: int):
        self.language, self.weight, self.bonus = language, weight, bonus
        self.memo, self.none = dict[tuple[int, ...], np.ndarray](), np.zeros(classes + 1)

    def _scores(self, tokens: tuple[int, ...]) -> np.ndarray:
        if self.language is None:
            return self.none
        if tokens not in self.memo:
            self.memo[tokens] = self.weight * self.language(tokens)
        return self.memo[tokens]

    def tokens(self, prefixes: Sequence[tuple[int, ...]], following: np.ndarray) -> np.ndarray:
        """Return the scores (P, K) of the tokens ``following`` (K) after each prefix."""
        return np.stack([self._scores(tokens)[following] for tokens in prefixes]) + self.bonus

    def end(self, tokens: tuple[int, ...]) -> float:
        """Return the score of the end of the text after ``tokens``."""
        return float(self._scores(tokens)[-1])


class _Prefixes(NamedTuple):
    """P prefixes: tokens, and log-probabilities (P) of the alignments that end with a blank or with the last token.

    outside (P): weighted score of the language model and the bonus.
    """

    tokens: list[tuple[int, ...]]
    blank: np.ndarray
    token: np.ndarray
    outside: np.ndarray

    @classmethod
    def empty(cls) -> Self:
        """The prefix without tokens."""
        return cls([()], np.zeros(1), np.full(1, -np.inf), np.zeros(1))

    @property
    def scores(self) -> np.ndarray:
        """Score (P) of each prefix."""
        return np.logaddexp(self.blank, self.token) + self.outside

    def after(self, row: np.ndarray, tokens: np.ndarray, blank: int, beams: int, ahead: _Ahead) -> Self:
        """Return the best prefixes after a position with log-probabilities ``row`` (C), extended by ``tokens`` (K)."""
        last = np.array([prefix[-1] if prefix else -1 for prefix in self.tokens])
        repeats = tokens == last[:, None]
        inside = np.logaddexp(self.blank, self.token)
        same_token = np.where(repeats.any(1), self.token + row[last], -np.inf)
        longer = np.where(repeats, self.blank[:, None], inside[:, None]) + row[tokens]
        self._merge(same_token, longer, tokens)
        outside = self.outside[:, None] + ahead.tokens(self.tokens, tokens)
        same = type(self)(self.tokens, inside + row[blank], same_token, self.outside)
        order = np.argsort(-np.concatenate((same.scores, (longer + outside).ravel())), kind="stable")[:beams]
        stays, moves = order[order < len(last)], order[order >= len(last)] - len(last)
        moves = moves[longer.flat[moves] > -np.inf]
        begun, chosen = np.divmod(moves, max(1, len(tokens)))
        return type(self)(
            [self.tokens[i] for i in stays]
            + [(*self.tokens[i], int(tokens[k])) for i, k in zip(begun, chosen, strict=True)],
            np.concatenate((same.blank[stays], np.full(len(moves), -np.inf))),
            np.concatenate((same_token[stays], longer.flat[moves])),
            np.concatenate((self.outside[stays], outside.flat[moves])),
        )

    def _merge(self, same_token: np.ndarray, longer: np.ndarray, tokens: np.ndarray) -> None:
        """Move from ``longer`` (P, K) to ``same_token`` (P) the extensions of prefixes that are prefixes already."""
        places = {prefix: i for i, prefix in enumerate(self.tokens)}
        columns = {int(token): k for k, token in enumerate(tokens)}
        for i, prefix in enumerate(self.tokens):
            before, k = places.get(prefix[:-1]), columns.get(prefix[-1]) if prefix else None
            if before is not None and k is not None:
                same_token[i] = np.logaddexp(same_token[i], longer[before, k])
                longer[before, k] = -np.inf


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
