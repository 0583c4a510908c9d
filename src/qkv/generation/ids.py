"""Ids after ids, where no tokenizer is needed."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.generation.beam import beam_search
from qkv.generation.sample import generate
from qkv.models.transformer import Transformer
from qkv.spec.errors import UserError
from qkv.spec.generation import Generation


def write_ids(model: Transformer, ids: Sequence[int], generation: Generation) -> list[int]:
    """The ids that ``model`` writes after ``ids``; of a search those of the best score. Raises ``UserError`` for ids outside the vocabulary."""
    if model.encoder is not None:
        raise UserError("ids go on from ids in a decoder; this model is an encoder\u2013decoder and answers texts (qkv predict)")
    if generation.stop:
        raise UserError(f"stop: {generation.stop[0]!r} is a text, and ids are written here; leave it out")
    if generation.num_return > 1:
        raise UserError(f"num_return is {generation.num_return}, but from ids one row is written; leave it at 1")
    wrong = next((index for index in ids if not 0 <= index < (model.spec.vocab_size or 0)), None)
    if wrong is not None or not ids:
        given = "none" if wrong is None else wrong
        raise UserError(f"ids: {given} given; allowed: at least one id, each from 0 to {(model.spec.vocab_size or 0) - 1}")
    if generation.num_beams > 1:
        return beam_search(model, [list(ids)], generation)[0][0].tokens
    return generate(model, [list(ids)], generation)[0]
