"""XLM and FlauBERT: tied heads and their own."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import (
    FlaubertConfig,
    FlaubertForTokenClassification,
    FlaubertModel,
    FlaubertWithLMHeadModel,
    XLMConfig,
    XLMForQuestionAnsweringSimple,
    XLMModel,
    XLMWithLMHeadModel,
)

SIZES = {"vocab_size": 61, "emb_dim": 30, "n_layers": 2, "n_heads": 5, "max_position_embeddings": 23}


def xlm(**changed: Any) -> XLMConfig:
    return XLMConfig(**{**SIZES, **changed})


def flaubert(**changed: Any) -> FlaubertConfig:
    return FlaubertConfig(**{**SIZES, **changed})


CASES = (
    Case("xlm-masked", XLMWithLMHeadModel, xlm()),
    Case("xlm-masked-untied", XLMWithLMHeadModel, xlm(tie_word_embeddings=False, gelu_activation=False)),
    Case("xlm-body", XLMModel, xlm(layer_norm_eps=1e-3)),
    Case("xlm-answers", XLMForQuestionAnsweringSimple, xlm()),
    Case("flaubert-masked", FlaubertWithLMHeadModel, flaubert()),
    Case("flaubert-body", FlaubertModel, flaubert(gelu_activation=False)),
    Case("flaubert-tags", FlaubertForTokenClassification, flaubert(num_labels=4)),
)
