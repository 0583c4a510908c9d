"""Denoising: the model writes the whole of a damaged text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qkv.data.corpus import Corpus
from qkv.data.corruption import denoise as ops
from qkv.spec import tasks as spec
from qkv.spec.errors import UserError
from qkv.spec.recipe import Recipe
from qkv.tasks.fill_in import GAP, read_gaps
from qkv.tasks.restoration import Pair, RestorationTask
from qkv.tasks.task import register
from qkv.tokenizers.tokenizer import Tokenizer

NOISES: dict[type[spec.Noise], Callable[[Any, Tokenizer], ops.Noise]] = {
    spec.TokenMasking: lambda part, tokenizer: ops.TokenMasking(_mask(tokenizer), part.rate),
    spec.TokenDeletion: lambda part, tokenizer: ops.TokenDeletion(part.rate),
    spec.TextInfilling: lambda part, tokenizer: ops.TextInfilling(_mask(tokenizer), part.rate, part.mean_length),
    spec.SentencePermutation: lambda part, tokenizer: ops.SentencePermutation(full_stops(tokenizer)),
    spec.DocumentRotation: lambda part, tokenizer: ops.DocumentRotation(),
}


@register(spec.Denoising)
class DenoisingTask(RestorationTask):
    """The source is the damaged text, the target the text."""

    def sizes(self, length: int) -> tuple[int, int]:
        """Noise seldom makes a text longer: a source that is longer than its text is cut."""
        return length + 1, length + 1

    def prepared(self, recipe: Recipe, tokenizer: Tokenizer) -> Tokenizer:
        return tokenizer.with_specials(("bos", "eos", "mask"))

    def damage(self, recipe: Recipe, tokenizer: Tokenizer, corpus: Corpus) -> Any:
        unknown = next((part for part in self.spec.noises if type(part) not in NOISES), None)
        if unknown is not None:
            raise UserError(f"the noise {unknown.kind!r} has no rule; add one to qkv.tasks.denoising.NOISES")
        noises = [NOISES[type(part)](part, tokenizer) for part in self.spec.noises]

        def damaged(ids: np.ndarray, rng: np.random.Generator) -> Pair:
            return ops.denoise(ids, rng, noises), ids

        return damaged

    def repair(self, text: str, tokenizer: Tokenizer) -> tuple[list[int], None]:
        return (read_gaps(text, tokenizer, [_mask(tokenizer)]).ids if GAP.search(text) else tokenizer.encode(text)), None

    def repaired(self, known: None, tokens: Sequence[int], tokenizer: Tokenizer) -> str:
        return tokenizer.decode(tokens, skip_special=True).strip()


def full_stops(tokenizer: Tokenizer) -> list[int]:
    """The ids of the tokens that end a sentence: "." "!" "?", spaces left out."""
    pieces = tokenizer.token_bytes
    texts = (tokenizer.decode([i]) if pieces is None else pieces[i].decode(errors="replace") for i in range(tokenizer.vocab_size))
    return [index for index, text in enumerate(texts) if text.strip() in {".", "!", "?"}]


def _mask(tokenizer: Tokenizer) -> int:
    mask = tokenizer.special("mask")
    assert mask is not None
    return mask
