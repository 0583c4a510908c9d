"""LongT5 (Guo et al. 2022) with local attention: T5 1.1 with window attention in the encoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from qkv.interop.families.common.heads import body
from qkv.interop.families.encoder_decoders import t5
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import Head
from qkv.spec.masks import Full, Mask, Window
from qkv.spec.model import Block, Model
from qkv.spec.models.blocks import Layered

_RADIUS = "local_radius"
L = TypeVar("L", bound=Layered)


def _local(row: NameRule) -> NameRule:
    """Return the row of T5's name table with the names of the encoder's attention."""
    return row._replace(theirs=tuple(name.replace(_PLAIN, _LOCAL) for name in row.published))


_PLAIN, _LOCAL = "encoder.block.{layer}.layer.0.SelfAttention.", "encoder.block.{layer}.layer.0.LocalSelfAttention."
NAMES = tuple(_local(row) for row in t5.NAMES)


def _with_mask(stack: L, mask: Mask) -> L:
    """Return the stack with ``mask`` in the first branch of every block, which is attention."""
    blocks = [(block, *block.branches) for block in stack.blocks]
    return stack.changed(
        blocks=tuple(block.changed(branches=(first.changed(mask=mask), *rest)) for block, first, *rest in blocks)
    )


def spec(config: Config, head: Head) -> Model:
    """Build the spec of LongT5: like T5, but the encoder's queries see ``local_radius`` positions to each side."""
    config.fixed("encoder_attention_type", "local", "the encoder's attention, which then has sums of blocks as keys")
    model, mask = t5.spec(config, head), Window(size=config.size(_RADIUS, 127) + 1)
    if model.encoder is None:
        return _with_mask(model, mask)
    return model.changed(encoder=_with_mask(model.encoder, mask))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not LongT5's. Callers read them back to verify."""
    match (spec.encoder or spec).layers[:1]:
        case (Block(branches=(Attention(mask=Window(size=size)), *_)),):
            radius = size - 1
        case _:
            return None
    plain = _with_mask(spec, Full()) if spec.encoder is None else spec
    plain = plain if spec.encoder is None else plain.changed(encoder=_with_mask(spec.encoder, Full()))
    keys = t5.config(plain)
    return keys and {**keys, _RADIUS: radius, "encoder_attention_type": "local"}


LONGT5 = replace(
    t5.T5,
    name="LongT5",
    base="T5",
    model_types=("longt5",),
    architectures={
        "LongT5ForConditionalGeneration": t5.T5.architectures["T5ForConditionalGeneration"],
        "LongT5Model": body("shared.weight"),
        "LongT5EncoderModel": t5.T5.architectures["T5EncoderModel"],
    },
    spec=spec,
    config=config,
    names=NAMES,
    ignored_config={**t5.T5.ignored_config, "global_block_size": "used only by the other kind of attention"},
)

register(LONGT5)
