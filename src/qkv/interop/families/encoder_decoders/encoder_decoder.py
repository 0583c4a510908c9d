"""Encoder–decoders of two models in one folder (Rothe et al. 2020): BERT, RoBERTa or BERT for generation, any pair.

The decoder is causal, and its blocks have cross-attention between self-attention and feed-forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from qkv.interop.families.common.heads import pooler, written_back
from qkv.interop.families.encoders import bert
from qkv.interop.families.encoders.bert_generation import BERT_GENERATION
from qkv.interop.families.encoders.roberta import ROBERTA
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR
from qkv.interop.mapping.family import COMMON, Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.model import Block, Encoder, Model, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import Learned
from qkv.system.errors import UserError


class _Kind(NamedTuple):
    """Family that an encoder or a decoder may have, and the architecture of its decoder."""

    family: Family
    decoder: str

    @property
    def head(self) -> Architecture:
        """Architecture of the decoder, with its head."""
        return self.family.architectures[self.decoder]


_KINDS = {
    "bert": _Kind(bert.BERT, "BertLMHeadModel"),
    "roberta": _Kind(ROBERTA, "RobertaForCausalLM"),
    "bert-generation": _Kind(BERT_GENERATION, "BertGenerationDecoder"),
}


def _kind_of(frontend: object) -> str:
    """Return the model type of a stack with this front end; "" if it has another structure."""
    match frontend:
        case Text(positions=Learned(offset=offset), types=types):
            return "roberta" if offset else "bert" if types else "bert-generation"
        case _:
            return ""


def _is(kind: str) -> Callable[[Model], bool]:
    return lambda spec: _kind_of(spec.frontend) == kind


def _decoder_names(name: str, kind: _Kind) -> tuple[NameRule, ...]:
    """Return the name table of a decoder of that kind, whose feed-forward is the third branch of a block."""
    body = (row._replace(ours=row.ours.replace("branches.1.", "branches.2.")) for row in kind.family.names)
    layer = f"{kind.family.prefix}encoder.layer.{{layer}}.crossattention."
    ours = "blocks.{layer}.branches.1."
    cross = (
        NameRule(f"{ours}norm.*", f"{layer}output.LayerNorm.*"),
        NameRule(f"{ours}body.query.*", f"{layer}self.query.*"),
        NameRule(f"{ours}body.memory.*", (f"{layer}self.key.*", f"{layer}self.value.*"), PAIR),
        NameRule(f"{ours}body.output.*", f"{layer}output.dense.*"),
    )
    return tuple(_when(row.below("decoder."), name) for row in (*cross, *body, *kind.head.names))


def _when(row: NameRule, kind: str) -> NameRule:
    """Return the row for decoders of that kind only, besides its own condition."""
    where, suits = row.where, _is(kind)
    return row._replace(where=suits if where is None else lambda spec: suits(spec) and where(spec))


NAMES = (
    *(row._replace(ours=f"encoder.{row.ours}") for row in bert.names("encoder.")),
    *(row for name, kind in _KINDS.items() for row in _decoder_names(name, kind)),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec: ``encoder`` and ``decoder`` are configs of models of the same width."""
    encoder, decoder = _stack_of(config, "encoder", LanguageModelHead()), _stack_of(config, "decoder", head)
    if encoder.width != decoder.width:
        raise UserError(
            f"{config.source}: hidden_size is {encoder.width} in the encoder and {decoder.width} in the decoder; this "
            "needs a linear map of the encoder's output, which qkv's encoder–decoders do not have"
        )
    return decoder.changed(
        blocks=tuple(with_cross_attention(block) for block in decoder.blocks),
        encoder=Encoder(
            num_layers=encoder.depth,
            context_length=encoder.context_length,
            frontend=encoder.frontend,
            blocks=encoder.blocks,
            norm=encoder.norm,
        ),
    )


def _stack_of(config: Config, name: str, head: Head) -> Model:
    """Build the spec of the encoder or the decoder as a model of its family, without cross-attention."""
    table = config.table(name)
    decodes = name == "decoder"
    for key in ("is_decoder", "add_cross_attention"):
        if table.flag(key, decodes and not table.values) != decodes:
            raise UserError(f"{table.source}: {key} should be {str(decodes).lower()} in the {name}")
    kind = table.word("model_type", "bert", _KINDS).family
    settings = Config({key: value for key, value in table.values.items() if key != "add_cross_attention"}, table.source)
    settings.assume({**kind.defaults, "is_decoder": decodes})
    model = kind.spec(settings, head)
    settings.leave_unread({**COMMON, **kind.ignored_config})
    return model


def with_cross_attention(block: Block) -> Block:
    """Return the block with cross-attention of the same heads between self-attention and feed-forward."""
    first, second = block.branches
    assert isinstance(first, Attention)
    cross = CrossAttention(num_heads=first.num_heads, dropout=first.dropout)
    return block.changed(branches=(first, cross, second))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    encoder = spec.encoder
    if encoder is None or encoder.frontend.processor is not None or any(len(b.branches) != 3 for b in spec.blocks):
        return None
    alone = tuple(block.changed(branches=(block.branches[0], block.branches[2])) for block in spec.blocks)
    fields = {name: getattr(encoder, name) for name in ("frontend", "context_length", "num_layers", "blocks")}
    stacks = (spec.changed(encoder=None, **fields), spec.changed(encoder=None, blocks=alone))
    tables = [_keys(stack) for stack in stacks]
    decoder = _KINDS.get(_kind_of(spec.frontend))
    head = decoder and decoder.head.config(spec.head)
    if head is None or not all(tables):
        return None
    reads = {"is_decoder": True, "add_cross_attention": True}
    return {"encoder": tables[0], "decoder": {**(tables[1] or {}), **head, **reads}, "is_encoder_decoder": True}


def _keys(stack: Model) -> dict[str, Any] | None:
    """Return the config keys of one stack as a model of its family; None if it has another structure."""
    kind = _kind_of(stack.frontend)
    keys = _KINDS[kind].family.config(stack) if kind else None
    return keys and {"model_type": kind, **keys}


def _words(config: Config) -> Head:
    table = config.table("decoder")
    kind = table.word("model_type", "bert", _KINDS)
    return kind.head.head(table)


def _words_keys(head: Head) -> dict[str, Any] | None:
    return {} if isinstance(head, LanguageModelHead) else None


_IGNORED = {
    f"decoder.{name}": reason
    for kind in _KINDS.values()
    for name, reason in {**kind.family.ignored, **kind.head.ignored}.items()
}
_SAME = {
    f"decoder.{second}": f"decoder.{first}" for kind in _KINDS.values() for second, first in kind.head.same.items()
}
ENCODER_DECODER = Family(
    name="Encoder–decoder of two models",
    model_types=("encoder-decoder",),
    architectures={
        "EncoderDecoderModel": Architecture(_words, _words_keys, kept=written_back(pooler("encoder.")), same=_SAME)
    },
    spec=spec,
    config=config,
    names=NAMES,
    ignored={**_IGNORED, "encoder.embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config={
        "tie_word_embeddings": "given by the decoder",
        "tie_encoder_decoder": "from older versions",
        "decoder_start_token_id": "read as start of the output",
    },
)

register(ENCODER_DECODER)
