"""Denoising (BART): the model reconstructs a corrupted text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qkv.data.corpora.corpus import Corpus
from qkv.spec import tasks as spec
from qkv.spec.recipe import Recipe
from qkv.spec.register import implementation, implements
from qkv.tasks.objectives import denoise as ops
from qkv.tasks.pairs.pairs import TokenPair
from qkv.tasks.pairs.restoration import RestorationTask
from qkv.tasks.text.fill_in import GAP, read_gaps
from qkv.tokenizers.tokenizer import Tokenizer


@implements(spec.TokenMasking)
def _token_masking(part: spec.TokenMasking, tokenizer: Tokenizer) -> ops.Noise:
    return ops.TokenMasking(_mask(tokenizer), part.rate)


@implements(spec.TokenDeletion)
def _token_deletion(part: spec.TokenDeletion, tokenizer: Tokenizer) -> ops.Noise:
    return ops.TokenDeletion(part.rate)


@implements(spec.TextInfilling)
def _text_infilling(part: spec.TextInfilling, tokenizer: Tokenizer) -> ops.Noise:
    return ops.TextInfilling(_mask(tokenizer), part.rate, part.mean_length)


@implements(spec.SentencePermutation)
def _sentence_permutation(part: spec.SentencePermutation, tokenizer: Tokenizer) -> ops.Noise:
    return ops.SentencePermutation(full_stops(tokenizer))


@implements(spec.DocumentRotation)
def _document_rotation(part: spec.DocumentRotation, tokenizer: Tokenizer) -> ops.Noise:
    return ops.DocumentRotation()


@implements(spec.Denoising)
class DenoisingTask(RestorationTask):
    """Denoising (BART): the source is a text corrupted by the spec's noises, the target is the original text."""

    def sizes(self, length: int) -> tuple[int, int]:
        """Return the maximum (source, target) tokens for a window of ``length``, with end tokens.

        Noise rarely lengthens a text; longer sources are truncated.
        """
        return length + 1, length + 1

    def prepared(self, recipe: Recipe, tokenizer: Tokenizer) -> Tokenizer:
        return tokenizer.with_specials(("bos", "eos", "mask"))

    def damage(self, recipe: Recipe, tokenizer: Tokenizer, corpus: Corpus) -> Any:
        noises = [implementation(part, "qkv.tasks.pairs")(part, tokenizer) for part in self.spec.noises]

        def damaged(ids: np.ndarray, rng: np.random.Generator) -> TokenPair:
            return TokenPair(ops.denoise(ids, rng, noises), ids)

        return damaged

    def repair(self, text: str, tokenizer: Tokenizer) -> tuple[list[int], None]:
        return (
            read_gaps(text, tokenizer, [_mask(tokenizer)]).ids if GAP.search(text) else tokenizer.encode(text)
        ), None

    def repaired(self, source: None, tokens: Sequence[int], tokenizer: Tokenizer) -> str:
        return tokenizer.decode(tokens, skip_special=True).strip()


def full_stops(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of tokens that end a sentence: "." "!" "?", with or without spaces."""
    pieces = tokenizer.token_bytes
    texts = (
        tokenizer.decode([i]) if pieces is None else pieces[i].decode(errors="replace")
        for i in range(tokenizer.vocab_size)
    )
    return [index for index, text in enumerate(texts) if text.strip() in {".", "!", "?"}]


def _mask(tokenizer: Tokenizer) -> int:
    mask = tokenizer.special("mask")
    assert mask is not None
    return mask
