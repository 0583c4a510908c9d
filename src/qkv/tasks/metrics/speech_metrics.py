"""Error rates of transcriptions, computed by jiwer over all words and characters of a split."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from qkv.tasks.metrics.text_metrics import metric_library

_PUNCTUATION = re.compile(r"[^\w\s']|_")


def normalised(text: str) -> str:
    """Return a text in lower case without punctuation, apostrophes excepted, with single spaces between words."""
    return " ".join(_PUNCTUATION.sub(" ", text.lower()).split())


def error_rates(references: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    """Compute error rates in per cent: Σ (substitutions + insertions + deletions) / Σ words of the references.

    ``wer``: of words, ``cer``: of characters; ``…_normalised``: of texts in lower case without punctuation.
    ``substitutions``, ``insertions``, ``deletions``: of words, also in per cent of the words of the references, so that
    their sum is ``wer``. NaN without any word in the references.
    """
    library = metric_library("jiwer", "sound")
    simple = [[normalised(text) for text in some] for some in (references, texts)]
    words = _of_words(library.process_words(list(references), list(texts)))
    return {
        "wer": words.pop("wer"),
        "cer": _of_words(library.process_characters(list(references), list(texts)))["wer"],
        "wer_normalised": _of_words(library.process_words(*simple))["wer"],
        "cer_normalised": _of_words(library.process_characters(*simple))["wer"],
        **words,
    }


def word_error(references: Sequence[str], texts: Sequence[str]) -> float:
    """Return the word error rate of texts in per cent, over all words of the references."""
    return _of_words(metric_library("jiwer", "sound").process_words(list(references), list(texts)))["wer"]


def token_error(references: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> float:
    """Return the error rate of token ids in per cent, over all tokens of the references."""
    some = ([" ".join(map(str, ids)) for ids in each] for each in (references, texts))
    return _of_words(metric_library("jiwer", "sound").process_words(*some))["wer"]


def rates_by(groups: Mapping[str, tuple[Sequence[str], Sequence[str]]], title: str) -> dict[str, Any]:
    """Build the report section of error rates for groups of rows, such as speakers: name -> (references, texts)."""
    rows = []
    for name, (references, texts) in sorted(groups.items()):
        rates = error_rates(references, texts)
        rows.append([name, str(len(texts)), *(_shown(rates[key]) for key in ("wer", "wer_normalised", "cer"))])
    columns = [title.rpartition(" ")[2], "rows", "word error %", "normalised %", "character error %"]
    return {"kind": "examples", "title": title, "columns": columns, "rows": rows}


def _shown(rate: float) -> str:
    return "–" if math.isnan(rate) else f"{rate:.1f}"


def _of_words(result: Any) -> dict[str, float]:
    count = result.hits + result.substitutions + result.deletions
    parts = {name: getattr(result, name) for name in ("substitutions", "insertions", "deletions")}
    rates = {name: 100 * value / count if count else math.nan for name, value in parts.items()}
    return {"wer": 100 * sum(parts.values()) / count if count else math.nan, **rates}
