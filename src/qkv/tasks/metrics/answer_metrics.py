"""Agreement of answers with reference answers: SQuAD's exact match and F1 (Rajpurkar et al. 2016, 2018)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

_MARKS = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def normalised(text: str) -> str:
    """Normalise ``text``: lower case, without ASCII punctuation and articles, with single spaces."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_MARKS)).split())


def exact_match(answer: str, truth: str) -> float:
    """Return 1 if an answer and a reference are equal when normalised, else 0."""
    return float(normalised(answer) == normalised(truth))


def overlap(answer: str, truth: str) -> float:
    """Compute the F1 of two texts as bags of normalised words: 2 · shared / (total words of both), 0 to 1.

    If a text has no words: 1 if both have none, else 0.
    """
    a, b = normalised(answer).split(), normalised(truth).split()
    if not a or not b:
        return float(a == b)
    return 2 * (Counter(a) & Counter(b)).total() / (len(a) + len(b))


def answer_scores(answers: Iterable[str], truths: Iterable[Sequence[str]]) -> dict[str, float]:
    """Compute ``exact_match`` and ``f1``, 0 to 100: maximum over the ``truths`` of a question, mean over questions.

    As in SQuAD's second evaluation script, truths without words are skipped, and a question without truths has the
    answer "".
    """
    exact = shared = 0.0
    count = 0
    for answer, references in zip(answers, truths, strict=True):
        usable = [truth for truth in references if normalised(truth)] or [""]
        exact += max(exact_match(answer, truth) for truth in usable)
        shared += max(overlap(answer, truth) for truth in usable)
        count += 1
    return {"exact_match": 100 * exact / max(1, count), "f1": 100 * shared / max(1, count)}
