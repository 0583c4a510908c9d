"""Mistral: with a window shorter than the rows, and without one."""

from __future__ import annotations

from tests.interop.cases.case import Case
from tests.interop.cases.llama import SIZES, YARN, rotated
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    MistralForQuestionAnswering,
    MistralForSequenceClassification,
)

CASES = (
    Case("mistral-window", MistralForCausalLM, MistralConfig(**SIZES, head_dim=14, sliding_window=4)),
    Case(
        "mistral-full",
        MistralForCausalLM,
        MistralConfig(**{**SIZES, **rotated(**YARN), "num_key_value_heads": 3}, sliding_window=None),
    ),
    Case(
        "mistral-classes",
        MistralForSequenceClassification,
        MistralConfig(**{**SIZES, "num_labels": 3}, sliding_window=4, pad_token_id=1),
    ),
    Case("mistral-answers", MistralForQuestionAnswering, MistralConfig(**SIZES, sliding_window=3)),
)
