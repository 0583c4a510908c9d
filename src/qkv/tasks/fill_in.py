"""Texts with gaps: read, filled with the model's best words, and shown."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.data.vocabulary import Vocabulary
from qkv.generation.sample import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.errors import UserError
from qkv.spec.recipe import Recipe
from qkv.tasks.example_task import text_in
from qkv.tasks.text_task import TextTask
from qkv.tokenizers.framing import Framed
from qkv.tokenizers.tokenizer import Tokenizer

GAP = re.compile(r"<mask>|\[MASK\]|<extra_id_\d+>")
"""How a gap is written in a text."""
BEST = 5


class Gapped(NamedTuple):
    """A text with gaps. ``ids`` of all of it, the mask at ``places``; ``pieces``: what stands before, between and behind the gaps."""

    ids: list[int]
    places: list[int]
    pieces: list[str]


def read_gaps(text: str, tokenizer: Tokenizer, marks: Sequence[int]) -> Gapped:
    """``text`` with ``marks[k]`` at gap k, or the last of ``marks`` where there are more gaps.

    Where words carry the space before them, a gap does so too. Raises ``UserError`` for a text without a gap.
    """
    pieces = GAP.split(text)
    if len(pieces) == 1:
        raise UserError(f"the text {text[:60]!r} has no gap to fill; write <mask> where something is missing")
    spaced = words_carry_spaces(tokenizer)
    ids: list[int] = []
    places = []
    for number, piece in enumerate(pieces[:-1]):
        ids += tokenizer.encode(piece.rstrip(" ") if spaced else piece)
        places.append(len(ids))
        ids.append(marks[min(number, len(marks) - 1)])
    return Gapped([*ids, *tokenizer.encode(pieces[-1])], places, pieces)


def filled(gapped: Gapped, words: Sequence[str]) -> str:
    """The text with ``words`` in its gaps."""
    return gapped.pieces[0] + "".join(word + piece for word, piece in zip(words, gapped.pieces[1:], strict=True))


def words_carry_spaces(tokenizer: Tokenizer) -> bool:
    """True if a space belongs to the token of the word behind it."""
    return tokenizer.token_bytes is not None and any(piece[:1] == b" " and piece[1:2].isalnum() for piece in tokenizer.token_bytes)


def word_of(tokenizer: Tokenizer, index: int) -> str:
    """What is written for one token alone."""
    word = tokenizer.decode([index])
    return word.strip(" ") or word if words_carry_spaces(tokenizer) else word


class FillInTask(TextTask):
    """A task whose model says what stands in a gap of one token. Round the text stands what the tokenizer's template says, if it has one."""

    asks = ("text",)

    @abstractmethod
    def logits(self, model: Transformer, read: Framed, places: list[int]) -> Tensor:
        """(places, V): of each token at each of ``places`` of the ids, where the masks stand; without types where the model reads none."""

    def predict(self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [self._answer(model, vocabulary.tokenizer, recipe, text_in(row, "text")) for row in rows]

    def _answer(self, model: Transformer, tokenizer: Tokenizer, recipe: Recipe, text: str) -> dict[str, Any]:
        mask = tokenizer.special("mask")
        assert mask is not None
        gapped = read_gaps(text, tokenizer, [mask])
        read = tokenizer.frame.around(gapped.ids)
        if read.whole > recipe.model.context_length:
            raise UserError(f"the text has {read.whole} tokens, and the model reads {recipe.model.context_length}; give a shorter one")
        read = read._replace(types=recipe.model.types_read(read.types))
        with torch.inference_mode(), evaluating(model):
            logits = at_least_single(self.logits(model, read, [read.begins[0] + place for place in gapped.places]))
            logits[:, mask] = -torch.inf
            logits[:, tokenizer.vocab_size :] = -torch.inf  # rows that only fill up the table of a published checkpoint
            best = logits.softmax(-1).topk(min(BEST, tokenizer.vocab_size - 1))
        words = [[word_of(tokenizer, index) for index in row] for row in best.indices.tolist()]
        shown = [
            [{"word": word, "probability": p} for word, p in zip(*pair, strict=True)]
            for pair in zip(words, best.values.tolist(), strict=True)
        ]
        return {"answer": filled(gapped, [row[0] for row in words]), "best": shown}
