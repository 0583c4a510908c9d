"""Span corruption (T5): the model generates the spans removed from a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.data.corpora.corpus import Corpus
from qkv.spec.recipe import Recipe
from qkv.spec.register import implements
from qkv.spec.tasks import SpanCorruption
from qkv.system.errors import UserError
from qkv.tasks.objectives.spans import corrupt_spans, counts, lengths_of
from qkv.tasks.pairs.pairs import TokenPair
from qkv.tasks.pairs.restoration import RestorationTask
from qkv.tasks.text.fill_in import Gapped, filled, read_gaps, words_carry_spaces
from qkv.tokenizers.tokenizer import Tokenizer


@implements(SpanCorruption)
class SpanCorruptionTask(RestorationTask):
    """Span corruption (T5): spans of a text are replaced by sentinels, and the model generates the spans.

    Sentinels are the special tokens <extra_id_0>, <extra_id_1>, …; there are as many as a window has spans.
    """

    example = "… <mask> …"

    def sizes(self, length: int) -> tuple[int, int]:
        return lengths_of(length, self.spec.density, self.spec.mean_length)

    def prepared(self, recipe: Recipe, tokenizer: Tokenizer) -> Tokenizer:
        spans = counts(self.window(recipe), self.spec.density, self.spec.mean_length)[1]
        return tokenizer.with_specials(("bos", "eos"), [f"<extra_id_{k}>" for k in range(spans)])

    def damage(self, recipe: Recipe, tokenizer: Tokenizer, corpus: Corpus) -> Any:
        marks, spec = sentinels(tokenizer), self.spec

        def cut(ids: np.ndarray, rng: np.random.Generator) -> TokenPair:
            source, target = corrupt_spans(ids, rng, marks, 0, spec.density, spec.mean_length)
            return TokenPair(source[:-1], target[:-1])  # end tokens are added when source and target are joined

        return cut

    def repair(self, text: str, tokenizer: Tokenizer) -> tuple[list[int], Gapped]:
        marks = sentinels(tokenizer)
        gapped = read_gaps(text, tokenizer, marks)
        if len(gapped.places) > len(marks):
            raise UserError(
                f"the text has {len(gapped.places)} gaps, but the model can fill at most {len(marks)} at once"
            )
        return gapped.ids, gapped

    def repaired(self, source: Gapped, tokens: Sequence[int], tokenizer: Tokenizer) -> str:
        marks, spaced = sentinels(tokenizer), words_carry_spaces(tokenizer)
        spans = [tokenizer.decode(span, skip_special=True) for span in spans_of(tokens, marks, len(source.places))]
        return filled(source, [span.strip(" ") if spaced else span for span in spans])


def sentinels(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of all special tokens <extra_id_0>, <extra_id_1>, … of the tokenizer."""
    ids: list[int] = []
    while (index := tokenizer.core.token_to_id(f"<extra_id_{len(ids)}>")) is not None:
        ids.append(index)
    return ids


def spans_of(tokens: Sequence[int], marks: Sequence[int], count: int) -> list[list[int]]:
    """Return the tokens generated after each of the first ``count`` sentinels ``marks``; [] for a missing sentinel."""
    spans: dict[int, list[int]] = {}
    current: list[int] = []
    for token in tokens:
        if token in marks:
            current = spans.setdefault(marks.index(token), [])
        else:
            current.append(token)
    return [spans.get(k, []) for k in range(count)]
