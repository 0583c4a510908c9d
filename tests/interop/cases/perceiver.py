"""Perceiver: latents of another width than the token vectors, queries and keys of a third, with and without a residual,
both ways to say of which width the attention to the input is; hidden words, classes and a number.

That library answers at every position of its table, so the longest row is as long as it.
"""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import PerceiverConfig, PerceiverForMaskedLM, PerceiverForSequenceClassification


def config(**changed: Any) -> PerceiverConfig:
    sizes = {"vocab_size": 61, "d_model": 24, "d_latents": 30, "num_latents": 7, "num_self_attends_per_block": 3}
    heads = {"num_self_attention_heads": 5, "num_cross_attention_heads": 3, "max_position_embeddings": 9}
    return PerceiverConfig(**{**sizes, **heads, **changed})


CASES = (
    Case("perceiver-masked", PerceiverForMaskedLM, config()),
    Case(
        "perceiver-masked-alone",
        PerceiverForMaskedLM,
        config(
            use_query_residual=False,
            hidden_act="relu",
            cross_attention_widening_factor=2,
            self_attention_widening_factor=3,
        ),
    ),
    Case(
        "perceiver-masked-channels",
        PerceiverForMaskedLM,
        config(qk_channels=45, v_channels=30, num_self_attends_per_block=1),
    ),
    Case("perceiver-masked-rounds", PerceiverForMaskedLM, config(num_blocks=3, num_self_attends_per_block=2)),
    Case(
        "perceiver-masked-by-latents",
        PerceiverForMaskedLM,
        config(cross_attention_shape_for_attention="q", num_latents=1),
    ),
    Case(
        "perceiver-classes",
        PerceiverForSequenceClassification,
        config(num_labels=4, max_position_embeddings=23, use_query_residual=False, num_blocks=2),
    ),
    Case("perceiver-number", PerceiverForSequenceClassification, config(num_labels=1, v_channels=30)),
)
