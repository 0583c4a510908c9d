"""Texts with gaps: functions to parse and fill them, and the base class of tasks that predict the gaps."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.data.vocabulary import Vocabulary
from qkv.models.evaluating import evaluating
from qkv.models.transformer import Transformer
from qkv.ops.at_least_single import at_least_single
from qkv.spec.recipe import Recipe
from qkv.system.errors import UserError
from qkv.tasks.example_task import text_in
from qkv.tasks.text.text_task import TextTask
from qkv.tokenizers.framing import Framed
from qkv.tokenizers.tokenizer import Tokenizer

GAP = re.compile(r"<mask>|\[MASK\]|<extra_id_\d+>")
"""Spellings of a gap in a text."""
BEST = 5


class Gapped(NamedTuple):
    """Text with gaps.

    ids: all tokens, with mask tokens at the indices ``places``.   pieces: text before, between and after the gaps.
    """

    ids: list[int]
    places: list[int]
    pieces: list[str]


def read_gaps(text: str, tokenizer: Tokenizer, marks: Sequence[int]) -> Gapped:
    """Encode ``text`` with the token ``marks[k]`` at gap k; the last of ``marks`` is used for further gaps.

    If the tokenizer's words include the preceding space, a gap includes it too. Raises ``UserError`` for a text without
    gaps.
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
    """Return the text with ``words`` inserted in the gaps."""
    return gapped.pieces[0] + "".join(word + piece for word, piece in zip(words, gapped.pieces[1:], strict=True))


def words_carry_spaces(tokenizer: Tokenizer) -> bool:
    """Return True if tokens of words include the preceding space, as in GPT-2's vocabulary."""
    return tokenizer.token_bytes is not None and any(
        piece[:1] == b" " and piece[1:2].isalnum() for piece in tokenizer.token_bytes
    )


def word_of(tokenizer: Tokenizer, index: int) -> str:
    """Decode the single token ``index``."""
    word = tokenizer.decode([index])
    return word.strip(" ") or word if words_carry_spaces(tokenizer) else word


class FillInTask(TextTask):
    """Base class of tasks whose models fill single-token gaps in a text; the tokenizer's template frames the text."""

    asks = ("text",)
    example = "… <mask> …"

    @abstractmethod
    def logits(self, model: Transformer, read: Framed, places: list[int]) -> Tensor:
        """Compute logits (len(places), V) at the mask tokens ``places`` of ``read``, whose ``types`` may be empty."""

    def predict(
        self, model: Any, vocabulary: Vocabulary, recipe: Recipe, rows: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        return [self._answer(model, vocabulary.tokenizer, recipe, text_in(row, "text")) for row in rows]

    def _answer(self, model: Transformer, tokenizer: Tokenizer, recipe: Recipe, text: str) -> dict[str, Any]:
        mask = tokenizer.special("mask")
        assert mask is not None
        gapped = read_gaps(text, tokenizer, [mask])
        read = tokenizer.frame.around(gapped.ids)
        if read.whole > recipe.model.context_length:
            raise UserError(
                f"the text has {read.whole} tokens, and the model reads {recipe.model.context_length}; "
                "give a shorter one"
            )
        read = read._replace(types=recipe.model.types_read(read.types))
        with torch.inference_mode(), evaluating(model):
            logits = at_least_single(self.logits(model, read, [read.begins[0] + place for place in gapped.places]))
            logits[:, mask] = -torch.inf
            logits[
                :, tokenizer.vocab_size :
            ] = -torch.inf  # padding rows in the embedding table of a published checkpoint
            best = logits.softmax(-1).topk(min(BEST, tokenizer.vocab_size - 1))
        words = [[word_of(tokenizer, index) for index in row] for row in best.indices.tolist()]
        candidates = [
            [{"word": word, "probability": p} for word, p in zip(*pair, strict=True)]
            for pair in zip(words, best.values.tolist(), strict=True)
        ]
        return {"answer": filled(gapped, [row[0] for row in words]), "best": candidates}
