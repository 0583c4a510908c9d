"""Tags of entity spans (BIO, BIOES): decoding to entities, metrics, and a baseline."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from qkv.tasks.metrics.text_metrics import metric_library
from qkv.tasks.task import Evaluation

OUTSIDE = "O"
_PREFIXES = ("B-", "I-", "E-", "S-")


class Entity(NamedTuple):
    """Entity of a type that spans the words [begin, end)."""

    type: str
    begin: int
    end: int


def marks_entities(tags: Iterable[str]) -> bool:
    """Return True if the tags encode spans (O, B-x, I-x, E-x and S-x), not one class per word."""
    names = set(tags)
    return OUTSIDE in names and all(tag == OUTSIDE or tag.startswith(_PREFIXES) for tag in names)


def entities(tags: Sequence[str]) -> list[Entity]:
    """Decode the entities in ``tags`` by the rules of CoNLL's evaluation (Tjong Kim Sang and De Meulder 2003).

    B and S begin an entity. I and E begin an entity after O, E, S or another type; otherwise they continue the current
    entity. An entity ends before O and before the next entity.
    """
    spans: list[Entity] = []
    begin, kind, before = 0, "", OUTSIDE
    for i, tag in enumerate([*tags, OUTSIDE]):
        mark, _, name = tag.partition("-")
        opens = mark != OUTSIDE and (mark in "BS" or before in "OES" or name != kind)
        if before != OUTSIDE and (opens or mark == OUTSIDE):
            spans.append(Entity(kind, begin, i))
        if opens:
            begin = i
        kind, before = name, mark
    return spans


def marked(words: Sequence[str], tags: Sequence[str]) -> str:
    """Format a tagged sentence: ``[Barack Obama](person) spoke``; ``the/DET dog/NOUN`` if tags encode no entities."""
    if not marks_entities([*tags, OUTSIDE]):
        return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True))
    parts, done = [], 0
    for kind, begin, end in entities(tags):
        parts += [*words[done:begin], f"[{' '.join(words[begin:end])}]({kind})"]
        done = end
    return " ".join([*parts, *words[done:]])


def text_entities(text: str, spans: Sequence[tuple[int, int]], tags: Sequence[str]) -> list[dict[str, Any]]:
    """Return the entities of a text whose words have the offsets ``spans``: type, text, and offsets [start, end)."""
    ranges = [(kind, spans[first][0], spans[last - 1][1]) for kind, first, last in entities(tags)]
    return [{"type": kind, "text": text[begin:end], "start": begin, "end": end} for kind, begin, end in ranges]


def marked_text(text: str, spans: Sequence[Mapping[str, Any]]) -> str:
    """Format a text with its entities: ``[Barack Obama](person) spoke.``"""
    parts, done = [], 0
    for entity in spans:
        parts += [text[done : entity["start"]], f"[{entity['text']}]({entity['type']})"]
        done = entity["end"]
    return "".join([*parts, text[done:]])


def entity_f1(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Compute the F1 over whole entities, 2 TP / (true + predicted), in per cent; 0 without entities.

    Equals the F1 of ``entity_scores``, but does not need seqeval.
    """
    hits = total = 0
    for true, guess in zip(truth, predicted, strict=True):
        expected, guessed = set(entities(true)), set(entities(guess))
        hits, total = hits + len(expected & guessed), total + len(expected) + len(guessed)
    return 100 * 2 * hits / total if total else 0.0


def entity_scores(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Evaluation:
    """Compute precision, recall and F1 of whole entities (type and boundaries correct), 0 to 100, with a table by type.

    Computed by seqeval in its default mode, which matches CoNLL's evaluation script.
    """
    score = partial(
        metric_library("seqeval.metrics.sequence_labeling").precision_recall_fscore_support,
        [list(tags) for tags in truth],
        [list(tags) for tags in predicted],
        zero_division=0,
    )
    precision, recall, f1, _ = score(average="micro")
    kinds = sorted({entity.type for tags in (*truth, *predicted) for entity in entities(tags)})
    by_type = zip(kinds, *score(average=None), strict=True) if kinds else ()
    rows = [
        [kind, f"{100 * p:.1f}", f"{100 * r:.1f}", f"{100 * f:.1f}", int(count)] for kind, p, r, f, count in by_type
    ]
    table = {
        "kind": "examples",
        "title": "By type",
        "columns": ["type", "precision", "recall", "F1", "entities"],
        "rows": rows,
    }
    figures = {"f1": 100 * float(f1), "precision": 100 * float(precision), "recall": 100 * float(recall)}
    return Evaluation(figures, [table] if rows else [])


class MostFrequent:
    """Context-free baseline: each word gets its most frequent training tag.

    Unknown words get the most frequent tag overall. Ties are broken alphabetically.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]):
        of_word: defaultdict[str, Counter[str]] = defaultdict(Counter)
        total: Counter[str] = Counter()
        for row in rows:
            for word, tag in zip(row["words"], row["tags"], strict=True):
                of_word[word][tag] += 1
                total[tag] += 1
        self._tags = {word: _most(counts) for word, counts in of_word.items()}
        self._other = _most(total)

    def __call__(self, words: Sequence[str]) -> list[str]:
        """Predict the tag of each word."""
        return [self._tags.get(word, self._other) for word in words]


def _most(counts: Counter[str]) -> str:
    return min(counts, key=lambda tag: (-counts[tag], tag))
