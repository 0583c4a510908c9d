"""Qwen3: normed heads that are wider than width / heads."""

from __future__ import annotations

from tests.interop.cases.case import Case
from tests.interop.cases.llama import SIZES
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForTokenClassification

CASES = (
    Case("qwen3", Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=14, rms_norm_eps=1e-3)),
    Case(
        "qwen3-biased",
        Qwen3ForCausalLM,
        Qwen3Config(**SIZES, head_dim=10, attention_bias=True, tie_word_embeddings=True),
    ),
    Case("qwen3-tags", Qwen3ForTokenClassification, Qwen3Config(**{**SIZES, "num_labels": 3})),
)
