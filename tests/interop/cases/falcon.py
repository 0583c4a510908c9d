"""Falcon: one key head, one per query, some shared; one norm, two, branches in turn; biases on, off; RoPE and ALiBi.

With ALiBi the library's eager attention counts the slopes twice, in its mask and beside it; its "sdpa" is as the makers
trained.
"""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import FalconConfig, FalconForCausalLM, FalconForSequenceClassification, FalconForTokenClassification


def config(**changed: Any) -> FalconConfig:
    sizes = {
        "vocab_size": 61,
        "hidden_size": 30,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "max_position_embeddings": 90,
    }
    return FalconConfig(**{**sizes, "bos_token_id": None, "eos_token_id": None, **changed})


GROUPED = {"new_decoder_architecture": True, "num_attention_heads": 6, "num_kv_heads": 2, "hidden_size": 36}
RW = {"alibi": True, "parallel_attn": False, "multi_query": False, "bias": True}

CASES = (
    Case("falcon-7b", FalconForCausalLM, config(ffn_hidden_size=44)),
    Case("falcon-40b", FalconForCausalLM, config(**GROUPED, tie_word_embeddings=False, layer_norm_epsilon=1e-3)),
    Case(
        "falcon-11b",
        FalconForCausalLM,
        config(**GROUPED, num_ln_in_parallel_attn=1, rope_theta=500.0, num_hidden_layers=3),
    ),
    Case(
        "falcon-in-turn",
        FalconForCausalLM,
        config(parallel_attn=False, multi_query=False, bias=True, activation="relu"),
    ),
    Case(
        "falcon-biased",
        FalconForCausalLM,
        config(bias=True, multi_query=False, rope_scaling={"rope_type": "linear", "factor": 3.0}),
    ),
    Case("falcon-rw", FalconForCausalLM, config(**RW, num_attention_heads=5), attention="sdpa"),
    Case(
        "falcon-rw-long",
        FalconForCausalLM,
        config(**RW, num_hidden_layers=1),
        lengths=(300, 7),
        steps=2,
        attention="sdpa",
    ),
    Case(
        "falcon-alibi-7b",
        FalconForCausalLM,
        config(alibi=True, hidden_size=28, num_attention_heads=7),
        attention="sdpa",
    ),
    Case("falcon-alibi-40b", FalconForCausalLM, config(**GROUPED, alibi=True), attention="sdpa"),
    Case(
        "falcon-alibi-11b",
        FalconForCausalLM,
        config(**GROUPED, alibi=True, num_ln_in_parallel_attn=1, bias=True),
        attention="sdpa",
    ),
    Case("falcon-classes", FalconForSequenceClassification, config(num_labels=3, pad_token_id=1)),
    Case("falcon-tags", FalconForTokenClassification, config(num_labels=3, hidden_dropout=0.2)),
)
