"""Encoder–decoders of two models: of one family or of two, other depths and heads."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import EncoderDecoderConfig, EncoderDecoderModel


def stack(kind: str, **changed: Any) -> dict[str, Any]:
    sizes = {"vocab_size": 61, "hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 3}
    given = {"intermediate_size": 44, "max_position_embeddings": 80, "pad_token_id": 1, **sizes}
    return {"model_type": kind, "bos_token_id": None, "eos_token_id": None, **given, **changed}


def pair(encoder: dict[str, Any], decoder: dict[str, Any]) -> EncoderDecoderConfig:
    reads = {"is_decoder": True, "add_cross_attention": True}
    return EncoderDecoderConfig(encoder=encoder, decoder={**decoder, **reads}, pad_token_id=1, decoder_start_token_id=5)


CASES = (
    Case(
        "bert-to-bert",
        EncoderDecoderModel,
        pair(stack("bert"), stack("bert", num_hidden_layers=1, num_attention_heads=5, hidden_act="relu")),
    ),
    Case(
        "generation-to-generation",
        EncoderDecoderModel,
        pair(stack("bert-generation"), stack("bert-generation", intermediate_size=17)),
    ),
    Case(
        "bert-to-roberta",
        EncoderDecoderModel,
        pair(stack("bert", layer_norm_eps=1e-3), stack("roberta", type_vocab_size=1)),
        steps=6,
    ),
    Case("roberta-to-bert", EncoderDecoderModel, pair(stack("roberta"), stack("bert", intermediate_size=17))),
)
