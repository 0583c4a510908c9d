"""Generation from token ids to token ids, without a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.generation.decode.beam import beam_search
from qkv.generation.decode.sample import generate
from qkv.generation.decode.speculate import Speculator
from qkv.models.transformer import Transformer
from qkv.spec.generation import Generation
from qkv.system.errors import UserError


def write_ids(
    model: Transformer,
    ids: Sequence[int],
    generation: Generation,
    speculation: Speculator | None = None,
    drawn: int | None = None,
) -> list[int]:
    """Generate token ids after ``ids``: a sample, or the best hypothesis of beam search if num_beams > 1.

    ``speculation``: decode speculatively, see ``qkv.generation.decode.speculate``. ``drawn``: only ids below it are
    sampled.

    Raises ``UserError`` for ids outside the vocabulary, an encoder–decoder, stop strings and num_return > 1.
    """
    if model.encoder is not None:
        raise UserError("only a decoder can continue ids, but this model is an encoder\u2013decoder; use qkv predict")
    if generation.stop:
        raise UserError(f"stop: {generation.stop[0]!r} is a text, but token ids are generated; leave it out")
    if generation.num_return > 1:
        raise UserError(
            f"num_return is {generation.num_return}, but generation from ids returns one row; leave it at 1"
        )
    wrong = next((index for index in ids if not 0 <= index < (model.spec.vocab_size or 0)), None)
    if wrong is not None or not ids:
        outside = "none" if wrong is None else wrong
        raise UserError(
            f"ids: {outside} given; allowed: at least one id, each from 0 to {(model.spec.vocab_size or 0) - 1}"
        )
    if generation.num_beams > 1 and speculation is None:
        return beam_search(model, [list(ids)], generation, drawn=drawn)[0][0].tokens
    return generate(model, [list(ids)], generation, speculation=speculation, drawn=drawn)[0]
