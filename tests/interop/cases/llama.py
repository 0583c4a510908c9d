"""Llama: three times as many heads as keys, heads wider than width / heads, rotation scalings, biases on and off."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, LlamaForTokenClassification

SIZES = {
    "vocab_size": 53,
    "hidden_size": 30,
    "intermediate_size": 22,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}


def rotated(**changed: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 5000.0, "rope_type": "default", **changed}}


def config(**changed: Any) -> LlamaConfig:
    return LlamaConfig(**{**SIZES, **changed})


CASES = (
    Case("llama2", LlamaForCausalLM, config(num_key_value_heads=3, rms_norm_eps=1e-3)),
    Case(
        "llama3-scaled",
        LlamaForCausalLM,
        config(num_attention_heads=6, num_key_value_heads=2, head_dim=8, **rotated(**LLAMA3)),
    ),
    Case(
        "llama-linear-biased",
        LlamaForCausalLM,
        config(attention_bias=True, mlp_bias=True, **rotated(rope_type="linear", factor=2.5)),
    ),
    Case(
        "llama-yarn-tied",
        LlamaForCausalLM,
        config(tie_word_embeddings=True, head_dim=12, hidden_act="gelu", **rotated(**YARN)),
    ),
    Case("llama-classes", LlamaForSequenceClassification, config(num_labels=3, pad_token_id=1)),
    Case("llama-number", LlamaForSequenceClassification, config(num_labels=1, pad_token_id=1)),
    Case("llama-tags", LlamaForTokenClassification, config(num_labels=2, classifier_dropout=0.3)),
)
