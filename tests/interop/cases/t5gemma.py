"""T5Gemma: another number of layers, heads and features in encoder and decoder, windows shorter than the rows."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import T5GemmaConfig, T5GemmaForConditionalGeneration

FULL, SLIDING = "full_attention", "sliding_attention"


def module(kinds: list[str], **changed: Any) -> dict[str, Any]:
    sizes = {"vocab_size": 61, "hidden_size": 24, "head_dim": 6, "max_position_embeddings": 80, "sliding_window": 4}
    more = {"num_hidden_layers": len(kinds), "layer_types": kinds, "query_pre_attn_scalar": 5}
    return {**sizes, **more, **changed}


ENCODER = module([SLIDING, FULL], num_attention_heads=4, num_key_value_heads=2, intermediate_size=40)
DECODER = module([SLIDING], num_attention_heads=3, num_key_value_heads=1, intermediate_size=28)
CAPS = {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0}

CASES = (
    Case(
        "t5gemma",
        T5GemmaForConditionalGeneration,
        T5GemmaConfig(encoder={**ENCODER, **CAPS}, decoder={**DECODER, **CAPS}, vocab_size=61),
        lengths=(15, 1, 8),
        steps=8,
    ),
)
