"""GPT-2: three heads, a feed-forward that is not four times as wide, each way to tie."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import (
    GPT2Config,
    GPT2ForQuestionAnswering,
    GPT2ForSequenceClassification,
    GPT2ForTokenClassification,
    GPT2LMHeadModel,
)


def config(**changed: Any) -> GPT2Config:
    sizes = {"vocab_size": 61, "n_positions": 80, "n_embd": 30, "n_layer": 2, "n_head": 3}
    return GPT2Config(**{**sizes, "bos_token_id": None, "eos_token_id": None, **changed})


CASES = (
    Case("gpt2", GPT2LMHeadModel, config()),
    Case(
        "gpt2-five-heads",
        GPT2LMHeadModel,
        config(n_head=5, n_inner=44, activation_function="relu", layer_norm_epsilon=1e-3),
    ),
    Case("gpt2-untied", GPT2LMHeadModel, config(tie_word_embeddings=False, n_layer=3, activation_function="gelu")),
    Case(
        "gpt2-scaled-by-layer", GPT2LMHeadModel, config(scale_attn_by_inverse_layer_idx=True, scale_attn_weights=False)
    ),
    Case("gpt2-classes", GPT2ForSequenceClassification, config(num_labels=4, pad_token_id=1)),
    Case("gpt2-tags", GPT2ForTokenClassification, config(num_labels=5)),
    Case("gpt2-answers", GPT2ForQuestionAnswering, config()),
)
