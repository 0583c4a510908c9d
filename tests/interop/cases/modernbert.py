"""ModernBERT: windows of odd widths, biases on and off, kinds of layers in any order, each head."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import (
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification,
    ModernBertForTokenClassification,
    ModernBertModel,
)

LENGTHS = (19, 1, 12)


def config(**changed: Any) -> ModernBertConfig:
    sizes = {
        "vocab_size": 61,
        "hidden_size": 30,
        "num_hidden_layers": 4,
        "num_attention_heads": 5,
        "intermediate_size": 22,
    }
    specials = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    return ModernBertConfig(**{**sizes, **specials, "max_position_embeddings": 40, "local_attention": 8, **changed})


BIASES = {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]
ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
}

CASES = (
    Case("modernbert-masked", ModernBertForMaskedLM, config(), LENGTHS),
    Case(
        "modernbert-biases",
        ModernBertForMaskedLM,
        config(**BIASES, tie_word_embeddings=False, local_attention=5, norm_eps=1e-2, num_attention_heads=3),
        LENGTHS,
    ),
    Case(
        "modernbert-kinds",
        ModernBertForMaskedLM,
        config(
            num_hidden_layers=3,
            layer_types=KINDS,
            rope_parameters=ROPES,
            decoder_bias=False,
            classifier_activation="relu",
        ),
        LENGTHS,
    ),
    Case("modernbert-body", ModernBertModel, config(hidden_activation="silu", local_attention=1), LENGTHS),
    Case(
        "modernbert-classes", ModernBertForSequenceClassification, config(num_labels=3, classifier_dropout=0.2), LENGTHS
    ),
    Case(
        "modernbert-mean",
        ModernBertForSequenceClassification,
        config(num_labels=1, classifier_pooling="mean", classifier_bias=True),
        LENGTHS,
    ),
    Case("modernbert-tags", ModernBertForTokenClassification, config(num_labels=5, num_hidden_layers=1), LENGTHS),
    Case(
        "modernbert-answers",
        ModernBertForQuestionAnswering,
        config(num_hidden_layers=2, classifier_activation="silu"),
        LENGTHS,
    ),
    Case("modernbert-answers-biased", ModernBertForQuestionAnswering, config(**BIASES, num_hidden_layers=1), LENGTHS),
)
