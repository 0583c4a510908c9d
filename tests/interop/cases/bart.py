"""BART, mBART, PLBart, MVP: stacks of different depths, heads and widths inside, scaled vectors, a head of its own."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tests.interop.cases.case import Case
from torch import Tensor
from transformers import (
    BartConfig,
    BartForCausalLM,
    BartForConditionalGeneration,
    BartForQuestionAnswering,
    BigBirdPegasusConfig,
    BigBirdPegasusForCausalLM,
    BigBirdPegasusForConditionalGeneration,
    MBartConfig,
    MBartForConditionalGeneration,
    MBartForQuestionAnswering,
    MvpConfig,
    MvpForConditionalGeneration,
    PLBartConfig,
    PLBartForConditionalGeneration,
    TrOCRConfig,
    TrOCRForCausalLM,
)


class UntiedBart(BartForConditionalGeneration):
    """With an untied head alone.

    The library of today then also gives each stack its own table, as no published file has.
    """

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        return {f"model.{stack}.embed_tokens.weight": "model.shared.weight" for stack in ("encoder", "decoder")}


UntiedBart.__name__ = "BartForConditionalGeneration"


def _marked(model: Any, **given: Tensor) -> dict[str, Any]:
    """Arguments for a decoder's own text.

    That library looks for the last end mark in what the encoder reads.
    """
    memory = model.model.encoder(given["input_ids"], attention_mask=given["attention_mask"])
    last = given["decoder_attention_mask"].sum(1, keepdim=True) - 1
    marks = torch.zeros_like(given["decoder_input_ids"]).scatter(1, last, model.config.eos_token_id)
    return {**given, "input_ids": marks, "encoder_outputs": memory}


class BartForSequenceClassification(transformers.BartForSequenceClassification):
    """With a decoder's text that may have another length than the encoder's."""

    def forward(self, **given: Any) -> Any:
        return super().forward(**_marked(self, **given))


class PLBartForSequenceClassification(transformers.PLBartForSequenceClassification):
    """Likewise."""

    def forward(self, **given: Any) -> Any:
        return super().forward(**_marked(self, **given))


class MBartForSequenceClassification(transformers.MBartForSequenceClassification):
    """Likewise."""

    def forward(self, **given: Any) -> Any:
        return super().forward(**_marked(self, **given))


def sizes(**changed: Any) -> dict[str, Any]:
    inside = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 44, "decoder_ffn_dim": 44}
    heads = {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "decoder_start_token_id": 2}
    given = {"vocab_size": 61, "d_model": 30, "max_position_embeddings": 80, "dropout": 0.2, **inside, **heads}
    return {**given, "bos_token_id": None, "eos_token_id": None, "forced_eos_token_id": None, **changed}


def alone(**changed: Any) -> dict[str, Any]:
    """Sizes of a decoder."""
    return {key: size for key, size in sizes(**changed).items() if not key.startswith("encoder")}


CASES = (
    Case("bart", BartForConditionalGeneration, BartConfig(**sizes())),
    Case(
        "bart-two-depths",
        BartForConditionalGeneration,
        BartConfig(
            **sizes(encoder_layers=1, decoder_layers=3, encoder_attention_heads=5, decoder_attention_heads=2),
            scale_embedding=True,
            activation_function="relu",
            attention_dropout=0.3,
        ),
    ),
    Case(
        "bart-untied",
        UntiedBart,
        BartConfig(
            **sizes(tie_word_embeddings=False, encoder_ffn_dim=17, decoder_ffn_dim=90, decoder_attention_heads=1)
        ),
    ),
    Case(
        "bart-three-tables",
        BartForConditionalGeneration,
        BartConfig(**sizes(tie_word_embeddings=False)),
        computed=("model.shared.weight",),
    ),
    Case("mbart", MBartForConditionalGeneration, MBartConfig(**sizes(decoder_layers=1, scale_embedding=True))),
    Case(
        "bart-classes",
        BartForSequenceClassification,
        BartConfig(**sizes(num_labels=4, eos_token_id=2, classifier_dropout=0.3)),
    ),
    Case("trocr", TrOCRForCausalLM, TrOCRConfig(**alone(is_decoder=True, scale_embedding=True)), left=False),
    Case(
        "trocr-plain",
        TrOCRForCausalLM,
        TrOCRConfig(**alone(is_decoder=True, layernorm_embedding=False, tie_word_embeddings=False)),
        left=False,
    ),
    Case("bart-alone", BartForCausalLM, BartConfig(**sizes(is_decoder=True)), left=False),
    Case("plbart", PLBartForConditionalGeneration, PLBartConfig(**sizes(scale_embedding=False))),
    Case("plbart-classes", PLBartForSequenceClassification, PLBartConfig(**sizes(num_labels=3, eos_token_id=2))),
    Case("mvp", MvpForConditionalGeneration, MvpConfig(**sizes(encoder_layers=1)), computed=("final_logits_bias",)),
    Case("bart-answers", BartForQuestionAnswering, BartConfig(**sizes())),
    Case("mbart-number", MBartForSequenceClassification, MBartConfig(**sizes(num_labels=1, eos_token_id=2))),
    Case("mbart-answers", MBartForQuestionAnswering, MBartConfig(**sizes(encoder_layers=1))),
    Case(
        "bigbird-pegasus",
        BigBirdPegasusForConditionalGeneration,
        BigBirdPegasusConfig(**sizes(encoder_layers=1, attention_type="original_full")),
    ),
    Case(
        "bigbird-pegasus-biases",
        BigBirdPegasusForConditionalGeneration,
        BigBirdPegasusConfig(**sizes(decoder_layers=1, attention_type="original_full", use_bias=True)),
    ),
    Case(
        "bigbird-pegasus-alone", BigBirdPegasusForCausalLM, BigBirdPegasusConfig(**sizes(is_decoder=True)), left=False
    ),
)
