"""Encoders whose tokens have further marks: LayoutLM, TAPAS, RoCBert."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import (
    LayoutLMConfig,
    LayoutLMForMaskedLM,
    LayoutLMForQuestionAnswering,
    LayoutLMForSequenceClassification,
    LayoutLMForTokenClassification,
    LayoutLMModel,
    RoCBertConfig,
    RoCBertForCausalLM,
    RoCBertForMaskedLM,
    RoCBertForSequenceClassification,
    RoCBertForTokenClassification,
    RoCBertModel,
    TapasConfig,
    TapasForMaskedLM,
    TapasForSequenceClassification,
    TapasModel,
)

SIZES = {
    "vocab_size": 61,
    "hidden_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "intermediate_size": 44,
    "max_position_embeddings": 23,
}


def layout(**changed: Any) -> LayoutLMConfig:
    return LayoutLMConfig(**{**SIZES, "max_2d_position_embeddings": 17, **changed})


def tapas(**changed: Any) -> TapasConfig:
    return TapasConfig(**{**SIZES, "type_vocab_sizes": [3, 6, 5, 2, 4], **changed})


def shaped(**changed: Any) -> RoCBertConfig:
    """The padding id of the marks' tables, whose vector that library does not train, is not the 0 of absent marks."""
    marks = {"shape_vocab_size": 11, "shape_embed_dim": 7, "pronunciation_vocab_size": 9, "pronunciation_embed_dim": 12}
    return RoCBertConfig(**{**SIZES, **marks, "pad_token_id": 1, **changed})


CASES = (
    Case("layoutlm-masked", LayoutLMForMaskedLM, layout()),
    Case("layoutlm-body", LayoutLMModel, layout(type_vocab_size=1)),
    Case("layoutlm-classes", LayoutLMForSequenceClassification, layout(num_labels=3)),
    Case("layoutlm-tags", LayoutLMForTokenClassification, layout(num_labels=4, hidden_act="relu")),
    Case("layoutlm-answers", LayoutLMForQuestionAnswering, layout()),
    Case("tapas-masked", TapasForMaskedLM, tapas()),
    Case("tapas-body", TapasModel, tapas(reset_position_index_per_cell=False)),
    Case("tapas-number", TapasForSequenceClassification, tapas(num_labels=1, type_vocab_sizes=[1, 2, 2])),
    Case("roc-bert-masked", RoCBertForMaskedLM, shaped()),
    Case("roc-bert-causal", RoCBertForCausalLM, shaped(is_decoder=True), steps=12),
    Case("roc-bert-body", RoCBertModel, shaped(type_vocab_size=1)),
    Case("roc-bert-classes", RoCBertForSequenceClassification, shaped(num_labels=3)),
    Case("roc-bert-tags", RoCBertForTokenClassification, shaped(num_labels=4)),
)
