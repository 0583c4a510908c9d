"""Metrics of generated texts against references, computed by their standard libraries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from qkv.system.errors import UserError
from qkv.tasks.task import Evaluation

_TOKEN = re.compile(r"\w+|[^\w\s]")


def metric_library(name: str, extra: str = "metrics") -> Any:
    """Import the library ``name``, one of the optional dependencies ``extra``.

    Raises ``UserError`` if it is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        raise UserError(
            f"this metric is computed by {name.split('.')[0]}, which is not installed; pip install 'qkv[{extra}]'"
        ) from None


def bleu(written: Sequence[str], references: Sequence[str]) -> Evaluation:
    """Compute the sacreBLEU (Post 2018) of texts with one reference each, 0 to 100, and its signature.

    ``bleu_tokenized``: BLEU (Papineni et al. 2002) without smoothing over lower-cased words and punctuation, as in
    tutorials that lower-case and tokenise both texts and references.
    """
    metrics = metric_library("sacrebleu.metrics")
    plain = metrics.BLEU()
    score = plain.corpus_score(list(written), [list(references)])
    split = metrics.BLEU(tokenize="none", smooth_method="none", force=True)
    tokenized = split.corpus_score([_tokens(text) for text in written], [[_tokens(text) for text in references]])
    return Evaluation({"bleu": score.score, "bleu_tokenized": tokenized.score}, [], [f"BLEU: {plain.get_signature()}"])


def _tokens(text: str) -> str:
    return " ".join(_TOKEN.findall(text.lower()))


def words_of(text: str) -> list[str]:
    """Return the lower-cased words of a text, without punctuation."""
    return [token for token in _TOKEN.findall(text.lower()) if token[0].isalnum() or token[0] == "_"]


def rouge(written: Sequence[str], references: Sequence[Sequence[str]]) -> Evaluation:
    """Compute stemmed ROUGE-1, ROUGE-2 and ROUGE-L F-measures (Lin 2004), 0 to 100.

    Maximum over the references of a text, mean over texts.
    """
    names = ("rouge1", "rouge2", "rougeL")
    scorer = metric_library("rouge_score.rouge_scorer").RougeScorer(list(names), use_stemmer=True)
    sums = dict.fromkeys(names, 0.0)
    for text, texts in zip(written, references, strict=True):
        best = scorer.score_multi(list(texts), text)
        for name in names:
            sums[name] += best[name].fmeasure
    return Evaluation({name: 100 * total / max(1, len(written)) for name, total in sums.items()})


def first_sentence(text: str) -> str:
    """Return the text up to the first ".", "!" or "?" that precedes white space."""
    return re.split(r"(?<=[.!?])\s+", text.strip(), maxsplit=1)[0]
