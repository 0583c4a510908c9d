"""BLOOM: head counts that are no power of two, so that slopes of ALiBi lie between others; each way to tie."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import BloomConfig, BloomForCausalLM, BloomForQuestionAnswering, BloomForSequenceClassification


def config(**changed: Any) -> BloomConfig:
    sizes = {"vocab_size": 61, "hidden_size": 30, "n_layer": 2, "n_head": 3}
    return BloomConfig(**{**sizes, "bos_token_id": None, "eos_token_id": None, **changed})


CASES = (
    Case("bloom", BloomForCausalLM, config()),
    Case("bloom-seven-heads", BloomForCausalLM, config(n_head=7, hidden_size=42, layer_norm_epsilon=1e-3)),
    Case("bloom-untied", BloomForCausalLM, config(n_head=4, hidden_size=36, n_layer=3, tie_word_embeddings=False)),
    Case("bloom-classes", BloomForSequenceClassification, config(num_labels=3, pad_token_id=1)),
    Case("bloom-answers", BloomForQuestionAnswering, config()),
)
