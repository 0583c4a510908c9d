"""Qwen2: a bias on q, k and v, a window in the later layers, or in layers of one's choice."""

from __future__ import annotations

from tests.interop.cases.case import Case
from tests.interop.cases.llama import SIZES, YARN, rotated
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

WINDOW = {"use_sliding_window": True, "sliding_window": 5}
MIXED = ["sliding_attention", "full_attention"]

CASES = (
    Case("qwen2", Qwen2ForCausalLM, Qwen2Config(**SIZES, tie_word_embeddings=True)),
    Case(
        "qwen2-later-window", Qwen2ForCausalLM, Qwen2Config(**SIZES, **WINDOW, max_window_layers=1, **rotated(**YARN))
    ),
    Case("qwen2-first-window", Qwen2ForCausalLM, Qwen2Config(**SIZES, **WINDOW, layer_types=MIXED)),
    Case("qwen2-classes", Qwen2ForSequenceClassification, Qwen2Config(**{**SIZES, "num_labels": 2}, pad_token_id=1)),
)
