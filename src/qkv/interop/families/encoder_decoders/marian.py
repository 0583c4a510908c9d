"""Marian (Junczys-Dowmunt et al. 2018), as published by OPUS-MT: post-norm encoder–decoder with sinusoids, sines first.

Logits have a learned bias. Source and target have one token table, or one each.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import bart_like
from qkv.interop.families.common.heads import body
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import Broadcast
from qkv.interop.mapping.family import Architecture
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.model import Model
from qkv.spec.parts import NoNorm


def _tables(config: Config) -> bart_like.Tables:
    source = config.size("vocab_size", 58101)
    target = config.size("decoder_vocab_size", source)
    shared = config.flag("share_encoder_decoder_embeddings", True)
    return bart_like.Tables(source, source if shared else target, shared)


def _keys(spec: Model) -> dict[str, Any]:
    source = spec.encoder or spec
    shared = spec.encoder is None or spec.encoder.share_embedding
    return {
        "vocab_size": source.vocab_size,
        "decoder_vocab_size": spec.vocab_size,
        "share_encoder_decoder_embeddings": shared,
        "pad_token_id": None,
    }


def _biased(config: Config) -> Head:
    """Build the language model head of Marian: logits = x W^T + b."""
    return LanguageModelHead(tied=config.flag("tie_word_embeddings", True), bias=True)


def _biased_keys(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, LanguageModelHead) or not head.bias:
        return None
    return {"tie_word_embeddings": head.tied}


_WORDS = Architecture(
    _biased,
    _biased_keys,
    (NameRule("head.weight", "lm_head.weight"), NameRule("head.bias", "final_logits_bias", Broadcast(0))),
)

MARIAN = bart_like.family(
    "Marian",
    "marian",
    {"MarianMTModel": _WORDS, "MarianModel": body(bart_like.TABLE), "MarianForCausalLM": bart_like.alone()},
    bart_like.BartLike("post", NoNorm(), bart_like.halves, tables=_tables, keys=_keys, stored=True),
    {"vocab_size": 58101},
)

register(MARIAN)
