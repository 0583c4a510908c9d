"""Gemma: heads wider than width / heads, own scale, caps or none, windows shorter than rows, rotation by layer kind."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma2ForSequenceClassification,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma3TextForSequenceClassification,
    Gemma3TextModel,
    GemmaConfig,
    GemmaForCausalLM,
    GemmaForTokenClassification,
    VaultGemmaConfig,
    VaultGemmaForCausalLM,
)

SIZES = {
    "vocab_size": 61,
    "hidden_size": 30,
    "intermediate_size": 22,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 14,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LOCAL_AND_GLOBAL = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 9000.0},
}
FULL, SLIDING = "full_attention", "sliding_attention"


def gemma(**changed: Any) -> GemmaConfig:
    return GemmaConfig(**{**SIZES, **changed})


def gemma2(**changed: Any) -> Gemma2Config:
    return Gemma2Config(**{**SIZES, "query_pre_attn_scalar": 21, "sliding_window": 4, **changed})


def gemma3(**changed: Any) -> Gemma3TextConfig:
    return Gemma3TextConfig(
        **{**SIZES, "query_pre_attn_scalar": 21, "sliding_window": 4, "sliding_window_pattern": 3, **changed}
    )


CASES = (
    Case(
        "vaultgemma",
        VaultGemmaForCausalLM,
        VaultGemmaConfig(**{**SIZES, "query_pre_attn_scalar": 21, "sliding_window": 4, "final_logit_softcapping": 2.0}),
        steps=14,
    ),
    Case("gemma", GemmaForCausalLM, gemma(hidden_act="gelu", rope_theta=700.0)),
    Case(
        "gemma-biased-untied",
        GemmaForCausalLM,
        gemma(attention_bias=True, num_key_value_heads=3, tie_word_embeddings=False),
    ),
    Case(
        "gemma2",
        Gemma2ForCausalLM,
        gemma2(attn_logit_softcapping=1.5, final_logit_softcapping=3.0, num_hidden_layers=3),
    ),
    Case(
        "gemma2-uncapped",
        Gemma2ForCausalLM,
        gemma2(attn_logit_softcapping=None, final_logit_softcapping=None, head_dim=8),
    ),
    Case("gemma3", Gemma3ForCausalLM, gemma3(num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=2)),
    Case(
        "gemma3-scaled",
        Gemma3ForCausalLM,
        gemma3(layer_types=[FULL, SLIDING], rope_parameters=LOCAL_AND_GLOBAL, rms_norm_eps=1e-3),
    ),
    Case(
        "gemma3-global-capped",
        Gemma3ForCausalLM,
        gemma3(layer_types=[FULL, FULL], final_logit_softcapping=2.0, attention_bias=True),
    ),
    Case(
        "gemma3-both-ways",
        Gemma3TextModel,
        gemma3(layer_types=[SLIDING, FULL], use_bidirectional_attention=True, attn_logit_softcapping=1.5),
    ),
    Case("gemma-tags", GemmaForTokenClassification, gemma(num_labels=3)),
    Case("gemma2-classes", Gemma2ForSequenceClassification, gemma2(num_labels=3, pad_token_id=1)),
    Case("gemma3-classes", Gemma3TextForSequenceClassification, gemma3(num_labels=5, pad_token_id=1)),
)
