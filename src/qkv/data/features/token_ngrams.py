"""Language model of n-grams of tokens, counted in texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

BEGIN = -1
"""Id that stands for the beginning of a text in the context of its first tokens."""


class TokenNgrams:
    """Language model of n-grams, interpolated by the rule of Witten and Bell (1991).

    p(w | h) = (c(h w) + t(h) p(w | h')) / (c(h) + t(h)), with the counts c in the texts, t(h) different tokens after
    the context h, h' = h without its first token, and 1 / (V + 1) below the empty context. Token V ends a text.

    order: largest number of tokens of an n-gram.   size: number of tokens V.   counts: context -> counts by next token.
    """

    def __init__(self, order: int, size: int, counts: Mapping[tuple[int, ...], Mapping[int, int]]):
        self.order, self.size = order, size
        self.counts = {
            context: (np.array(list(after), np.int64), np.array(list(after.values()), np.float64))
            for context, after in counts.items()
        }

    @classmethod
    def counted(cls, order: int, size: int, texts: Sequence[Sequence[int]]) -> Self:
        """Count the n-grams of texts of token ids; each text ends with the token ``size``."""
        counts = dict[tuple[int, ...], Counter[int]]()
        for text in texts:
            ids = [BEGIN] * (order - 1) + list(text) + [size]
            for place in range(order - 1, len(ids)):
                for length in range(order):
                    counts.setdefault(tuple(ids[place - length : place]), Counter())[ids[place]] += 1
        return cls(order, size, counts)

    def next_logits(self, tokens: tuple[int, ...]) -> np.ndarray:
        """Return log p (V + 1) of the token after ``tokens``, the end of the text last."""
        chances = np.full(self.size + 1, 1 / (self.size + 1))
        padded = ((BEGIN,) * (self.order - 1) + tokens)[len(tokens) :] if self.order > 1 else ()
        for length in range(self.order):
            context_counts = self.counts.get(padded[len(padded) - length :])
            if context_counts is None:
                break
            ids, counts = context_counts
            chances *= len(ids)
            chances[ids] += counts
            chances /= len(ids) + counts.sum()
        return np.log(chances)

    def to_plain(self) -> dict[str, Any]:
        """Return the model as plain data for JSON."""
        counts = {
            " ".join(map(str, context)): dict(zip(map(str, ids.tolist()), counts.astype(int).tolist(), strict=True))
            for context, (ids, counts) in self.counts.items()
        }
        return {"order": self.order, "size": self.size, "counts": counts}

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the model of ``to_plain``. Raises ``KeyError``, ``ValueError`` or ``TypeError`` for other data."""
        counts = {
            tuple(map(int, context.split())): {int(token): int(count) for token, count in after.items()}
            for context, after in plain["counts"].items()
        }
        return cls(int(plain["order"]), int(plain["size"]), counts)
