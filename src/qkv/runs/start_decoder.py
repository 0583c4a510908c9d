"""Start of a language model as the decoder of an encoder–decoder: where its weights stand in the larger model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import lcm

from torch import Tensor

from qkv.spec.model import Model
from qkv.spec.models.start import DecoderStart
from qkv.system.errors import UserError

_LAYER = re.compile(r"blocks\.(\d+)\.")
_ENCODER = "encoder."


def as_encoder_decoder(language_model: Model, part: DecoderStart, described: Model) -> Model:
    """Return the model whose decoder is ``language_model``: before each of its blocks stands one of
    ``described.blocks``, which read ``described.encoder``.

    ``described``: the model in the recipe; its blocks may hold those of the language model already, as in the recipe of
    a run. Raises ``UserError`` if the start is no language model of texts, or the recipe has no encoder.
    """
    if language_model.frontend.processor or language_model.frontend.inputs_read or language_model.encoder:
        raise UserError(
            f"start: {part.source!r} is not a language model of texts, of which a decoder is made; "
            "to continue the training of this model, name it without 'decoder'"
        )
    if described.encoder is None:
        raise UserError("start: a decoder reads an encoder, and the recipe has none; set model.encoder")
    old, new = language_model.blocks, described.blocks
    if len(new) % 2 == 0 and all(block == old[i % len(old)] for i, block in enumerate(new[1::2])):
        new = new[::2]
    if not all(any(branch.reads_memory for branch in block.branches) for block in new):
        raise UserError(
            "model.blocks: one stands before each block of the decoder, so each reads the encoder, "
            "such as [{branches: [cross_attention(4), feed_forward], residual: gated}]"
        )
    count = min(lcm(len(old), len(new)), language_model.depth)
    blocks = tuple(each for i in range(count) for each in (new[i % len(new)], old[i % len(old)]))
    return language_model.changed(encoder=described.encoder, blocks=blocks, num_layers=2 * language_model.depth)


def as_decoder(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a language model by their names in the model of ``as_encoder_decoder``."""
    return {
        _LAYER.sub(lambda match: f"blocks.{2 * int(match[1]) + 1}.", name, count=1): tensor
        for name, tensor in tensors.items()
    }


def of_language_model(names: Iterable[str]) -> set[str]:
    """Return those ``names`` of weights that the language model has; encoder and blocks that read it are new."""
    return {
        name
        for name in names
        if not name.startswith(_ENCODER) and not ((match := _LAYER.match(name)) and int(match[1]) % 2 == 0)
    }
