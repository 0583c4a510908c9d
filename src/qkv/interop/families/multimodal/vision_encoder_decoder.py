"""Encoder–decoders that write a text about an image: ViT or DeiT beside GPT-2, BERT or TrOCR's decoder.

TrOCR (Li et al. 2021) reads a line of text. The folder holds two models in one; the decoder's cross-attention, between
self-attention and feed-forward, reads all vectors of the encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from qkv.interop.families.common import bart_like
from qkv.interop.families.common.heads import pooler, written_back
from qkv.interop.families.decoders.gpt2 import GPT2
from qkv.interop.families.encoder_decoders.encoder_decoder import with_cross_attention
from qkv.interop.families.encoder_decoders.trocr import TROCR
from qkv.interop.families.encoders.bert import BERT
from qkv.interop.families.images.deit import DEIT
from qkv.interop.families.images.vit import VIT
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, TRANSPOSED
from qkv.interop.mapping.family import COMMON, Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head, LanguageModelHead, VectorsHead
from qkv.spec.model import Encoder, Model
from qkv.system.errors import UserError

_OF_STACK = ("num_layers", "context_length", "frontend", "blocks", "norm")


class _Decoder(NamedTuple):
    """Family of a decoder, its architecture, its name table with cross-attention, and default config keys."""

    family: Family
    architecture: str
    names: tuple[NameRule, ...]
    keys: Mapping[str, Any]

    @property
    def head(self) -> Architecture:
        """Architecture of the decoder, with its head."""
        return self.family.architectures[self.architecture]


def after_cross(rows: tuple[NameRule, ...]) -> tuple[NameRule, ...]:
    """Return the rows of a decoder alone with feed-forward as the third branch of a block."""
    return tuple(row._replace(ours=row.ours.replace("branches.1.", "branches.2.")) for row in rows)


_BLOCK, _GPT = "blocks.{layer}.branches.1.", "transformer.h.{layer}."
_GPT2_CROSS = (
    NameRule(f"{_BLOCK}norm.*", f"{_GPT}ln_cross_attn.*"),
    NameRule(f"{_BLOCK}body.query.*", f"{_GPT}crossattention.q_attn.*", TRANSPOSED),
    NameRule(f"{_BLOCK}body.memory.*", f"{_GPT}crossattention.c_attn.*", TRANSPOSED),
    NameRule(f"{_BLOCK}body.output.*", f"{_GPT}crossattention.c_proj.*", TRANSPOSED),
)
_BERT = "bert.encoder.layer.{layer}.crossattention."
BERT_CROSS = (
    NameRule(f"{_BLOCK}norm.*", f"{_BERT}output.LayerNorm.*"),
    NameRule(f"{_BLOCK}body.query.*", f"{_BERT}self.query.*"),
    NameRule(f"{_BLOCK}body.memory.*", (f"{_BERT}self.key.*", f"{_BERT}self.value.*"), PAIR),
    NameRule(f"{_BLOCK}body.output.*", f"{_BERT}output.dense.*"),
)
_DECODERS = {
    "bert": _Decoder(BERT, "BertLMHeadModel", (*BERT_CROSS, *after_cross(BERT.names)), {}),
    "gpt2": _Decoder(GPT2, "GPT2LMHeadModel", (*_GPT2_CROSS, *after_cross(GPT2.names)), {}),
    "trocr": _Decoder(TROCR, "TrOCRForCausalLM", bart_like.NAMES, {"is_encoder_decoder": False}),
}
_ENCODERS = {"vit": VIT, "deit": DEIT}


def _decoder_of(spec: Model) -> str:
    """Return the model type of a decoder: pre-norm blocks are those of GPT-2, token types those of BERT."""
    if spec.blocks and spec.blocks[0].order == "pre":
        return "gpt2"
    return "bert" if spec.frontend.num_types else "trocr"


def _encoder_of(spec: Model) -> str:
    """Return the model type of the encoder, by its leading positions: DeiT has two."""
    return "deit" if spec.encoder is not None and spec.encoder.frontend.leading == 2 else "vit"


def _rows(name: str, decoder: _Decoder) -> tuple[NameRule, ...]:
    rows = (*decoder.names, *decoder.head.names)
    return tuple(_where(row.below("decoder."), lambda spec: _decoder_of(spec) == name) for row in rows)


def _encoder_rows(name: str, family: Family) -> tuple[NameRule, ...]:
    rows = (row.without(family.prefix)._replace(ours=f"encoder.{row.ours}") for row in family.names)
    return tuple(_where(row.below("encoder."), lambda spec: _encoder_of(spec) == name) for row in rows)


def _where(row: NameRule, suits: Any) -> NameRule:
    """Return the row for models that suit, besides its own condition."""
    where = row.where
    return row._replace(where=suits if where is None else lambda spec: suits(spec) and where(spec))


def spec(config: Config, head: Head) -> Model:
    """Build the spec: ``encoder`` and ``decoder`` are configs of their own; cross-attention reads any width."""
    encoder, decoder = _alone(config, "encoder", VectorsHead()), _alone(config, "decoder", head)
    words = config.table("decoder").values
    reads = words.get("model_type") == "trocr" and words.get("cross_attention_hidden_size")
    if encoder.width not in (decoder.width, reads):
        raise UserError(
            f"{config.source}: hidden_size is {encoder.width} in the encoder and {decoder.width} in the decoder, "
            "and the decoder does not read vectors of that width; this needs a linear map of the encoder's output, "
            "which is unsupported"
        )
    fields = {name: getattr(encoder, name) for name in _OF_STACK}
    return decoder.changed(
        blocks=tuple(with_cross_attention(block) for block in decoder.blocks),
        encoder=Encoder(width=encoder.width, **fields),
    )


def _alone(config: Config, name: str, head: Head) -> Model:
    """Build the spec of the encoder or the decoder as a model of its family, without cross-attention."""
    table = config.table(name)
    kinds: Mapping[str, Family] = (
        _ENCODERS if name == "encoder" else {kind: decoder.family for kind, decoder in _DECODERS.items()}
    )
    family = table.word("model_type", next(iter(kinds)), kinds)
    ignored = ("add_cross_attention", "cross_attention_hidden_size", "is_decoder", "architectures")
    settings = Config({key: value for key, value in table.values.items() if key not in ignored}, table.source)
    settings.rename(family.synonyms)
    needed = {TROCR.name: {"architectures": ["TrOCRForCausalLM"]}, BERT.name: {"is_decoder": True}}
    settings.assume({**family.defaults, **needed.get(family.name, {})})
    model = family.spec(settings, head)
    settings.leave_unread({**COMMON, **family.ignored_config})
    return model


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    encoder, decoder = spec.encoder, _DECODERS[_decoder_of(spec)]
    if encoder is None or encoder.frontend.processor is None or any(len(b.branches) != 3 for b in spec.blocks):
        return None
    fields = {name: getattr(encoder, name) for name in _OF_STACK}
    images = _ENCODERS[_encoder_of(spec)].config(Model(width=spec.encoder_width, **fields, head=VectorsHead()))
    alone = tuple(block.changed(branches=(block.branches[0], block.branches[2])) for block in spec.blocks)
    keys = decoder.family.config(spec.changed(encoder=None, blocks=alone))
    head = decoder.head.config(spec.head)
    if images is None or keys is None or head is None:
        return None
    reads = {"is_decoder": True, "add_cross_attention": True, "cross_attention_hidden_size": spec.memory_width}
    words = {"model_type": _decoder_of(spec), **keys, **head, **decoder.keys, **reads}
    return {
        "encoder": {"model_type": _encoder_of(spec), **images},
        "decoder": words,
        "is_encoder_decoder": True,
    }


def _words(config: Config) -> Head:
    table = config.table("decoder")
    return _DECODERS[table.word("model_type", "bert", {kind: kind for kind in _DECODERS})].head.head(table)


def _words_keys(head: Head) -> dict[str, Any] | None:
    return {} if isinstance(head, LanguageModelHead) else None


_SAME = {
    f"decoder.{second}": f"decoder.{first}"
    for decoder in _DECODERS.values()
    for second, first in decoder.head.same.items()
}
VISION_ENCODER_DECODER = Family(
    name="Vision encoder–decoder",
    model_types=("vision-encoder-decoder",),
    architectures={
        "VisionEncoderDecoderModel": Architecture(
            _words, _words_keys, kept=written_back(pooler("encoder.")), same=_SAME
        )
    },
    spec=spec,
    config=config,
    names=(
        *(row for name, family in _ENCODERS.items() for row in _encoder_rows(name, family)),
        *(row for name, decoder in _DECODERS.items() for row in _rows(name, decoder)),
    ),
    ignored={
        f"decoder.{name}": reason
        for decoder in _DECODERS.values()
        for name, reason in {**decoder.family.ignored, **decoder.head.ignored}.items()
    },
    ignored_config={
        "tie_word_embeddings": "given by the decoder",
        "tie_encoder_decoder": "from older versions",
        "decoder_start_token_id": "read as start of the output",
    },
)

register(VISION_ENCODER_DECODER)
