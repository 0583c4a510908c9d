"""Encoders of pre-norm blocks: with a norm of the embeddings and without, each kind of head."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import (
    MegatronBertConfig,
    MegatronBertForMaskedLM,
    MegatronBertForSequenceClassification,
    MegatronBertForTokenClassification,
    MegatronBertModel,
    RobertaPreLayerNormConfig,
    RobertaPreLayerNormForMaskedLM,
    RobertaPreLayerNormForQuestionAnswering,
    RobertaPreLayerNormForSequenceClassification,
    XLMRobertaXLConfig,
    XLMRobertaXLForMaskedLM,
    XLMRobertaXLForSequenceClassification,
    XLMRobertaXLModel,
)

SIZES = {"vocab_size": 61, "hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 44}


def megatron(**changed: Any) -> MegatronBertConfig:
    return MegatronBertConfig(**{**SIZES, "max_position_embeddings": 23, **changed})


def roberta(**changed: Any) -> RobertaPreLayerNormConfig:
    return RobertaPreLayerNormConfig(**{**SIZES, "max_position_embeddings": 23, **changed})


def extra_large(**changed: Any) -> XLMRobertaXLConfig:
    return XLMRobertaXLConfig(**{**SIZES, "max_position_embeddings": 23, **changed})


CASES = (
    Case("megatron-masked", MegatronBertForMaskedLM, megatron(hidden_act="relu")),
    Case("megatron-body", MegatronBertModel, megatron(layer_norm_eps=1e-3)),
    Case("megatron-classes", MegatronBertForSequenceClassification, megatron(num_labels=3, type_vocab_size=1)),
    Case("megatron-tags", MegatronBertForTokenClassification, megatron(num_labels=4, hidden_dropout_prob=0.2)),
    Case("roberta-pre-masked", RobertaPreLayerNormForMaskedLM, roberta()),
    Case("roberta-pre-classes", RobertaPreLayerNormForSequenceClassification, roberta(pad_token_id=3)),
    Case("roberta-pre-answers", RobertaPreLayerNormForQuestionAnswering, roberta(layer_norm_eps=1e-2)),
    Case("xlm-roberta-xl-masked", XLMRobertaXLForMaskedLM, extra_large()),
    Case("xlm-roberta-xl-body", XLMRobertaXLModel, extra_large(type_vocab_size=2)),
    Case("xlm-roberta-xl-number", XLMRobertaXLForSequenceClassification, extra_large(num_labels=1)),
)
