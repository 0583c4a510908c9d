"""CIDEr, the agreement of a caption with the captions that people wrote (Vedantam et al. 2015)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from qkv.tasks.metrics.text_metrics import words_of

_LONGEST, _DEVIATION = 4, 6.0
Ngram = tuple[str, ...]


def cider(written: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Compute CIDEr-D of captions, each with one or more references; 0 to 10, and 10 if all equal their references.

        g(n-gram) = count · log(images / images with the n-gram in a reference)
        CIDEr-D = 10 · mean over n = 1 … 4 and references r of
                  exp(-(words - words of r)² / (2 · 6²)) · min(g, g_r) · g_r / (|g| |g_r|)

    Document frequencies are those of the references given. Words are lower-cased; punctuation is left out.
    """
    targets = [[_counts(words_of(text)) for text in some] for some in references]
    frequency = Counter(ngram for some in targets for ngram in set().union(*some))
    images = math.log(max(2, len(targets)))
    total = 0.0
    for text, some in zip(written, targets, strict=True):
        vector = _Vector(_counts(words_of(text)), frequency, images)
        scores = [vector.agreement(_Vector(each, frequency, images)) for each in some]
        total += 10 * sum(scores) / max(1, len(scores))
    return total / max(1, len(written))


def _counts(words: Sequence[str]) -> Counter[Ngram]:
    """Count the n-grams of 1 to 4 words."""
    sizes = range(1, _LONGEST + 1)
    return Counter(tuple(words[i : i + size]) for size in sizes for i in range(len(words) - size + 1))


class _Vector:
    """TF-IDF weights of the n-grams of a caption, by size, and their norms."""

    def __init__(self, counts: Mapping[Ngram, int], frequency: Mapping[Ngram, int], images: float):
        self.words = sum(count for ngram, count in counts.items() if len(ngram) == 1)
        self.weights: list[dict[Ngram, float]] = [{} for _ in range(_LONGEST)]
        for ngram, count in counts.items():
            self.weights[len(ngram) - 1][ngram] = count * (images - math.log(max(1, frequency.get(ngram, 0))))
        self.norms = [math.sqrt(sum(value * value for value in size.values())) for size in self.weights]

    def agreement(self, reference: _Vector) -> float:
        """Return the mean over sizes of the clipped cosine, times the penalty for another length."""
        penalty = math.exp(-((self.words - reference.words) ** 2) / (2 * _DEVIATION**2))
        cosines = 0.0
        for size in range(_LONGEST):
            targets = reference.weights[size]
            shared = ((value, targets[ngram]) for ngram, value in self.weights[size].items() if ngram in targets)
            length = self.norms[size] * reference.norms[size]
            cosines += sum(min(value, target) * target for value, target in shared) / (length or 1.0)
        return penalty * cosines / _LONGEST
