"""BigBird with full attention, without biases of queries and with scaled embeddings."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import BigBirdConfig, BigBirdForCausalLM, BigBirdForMaskedLM


def config(**changed: Any) -> BigBirdConfig:
    sizes = {"vocab_size": 61, "hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 5}
    more = {"intermediate_size": 44, "max_position_embeddings": 43, "attention_type": "original_full"}
    return BigBirdConfig(**{**sizes, **more, **changed})


CASES = (
    Case("big-bird-masked", BigBirdForMaskedLM, config(use_bias=False, rescale_embeddings=True)),
    Case("big-bird-causal", BigBirdForCausalLM, config(is_decoder=True), steps=12),
)
