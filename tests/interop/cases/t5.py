"""T5: heads not as wide as the model together, stacks of different depths, each feed-forward, heads tied and untied."""

from __future__ import annotations

from typing import Any

import transformers
from tests.interop.cases.case import Case
from transformers import MT5Config, SwitchTransformersConfig, T5Config, T5ForConditionalGeneration, UMT5Config

_SHARED = {"encoder.embed_tokens.weight": "shared.weight", "decoder.embed_tokens.weight": "shared.weight"}


class UntiedT5(T5ForConditionalGeneration):
    """With a head of its own, which that library makes of files alone that hold one."""

    _tied_weights_keys = _SHARED


class UntiedMT5(transformers.MT5ForConditionalGeneration):
    """Likewise."""

    _tied_weights_keys = _SHARED


UntiedT5.__name__, UntiedMT5.__name__ = "T5ForConditionalGeneration", "MT5ForConditionalGeneration"


def sizes(**changed: Any) -> dict[str, Any]:
    given = {
        "vocab_size": 61,
        "d_model": 30,
        "d_kv": 7,
        "d_ff": 44,
        "num_layers": 2,
        "num_heads": 3,
        "decoder_start_token_id": 0,
    }
    return {**given, "bos_token_id": None, "eos_token_id": None, **changed}


def config(**changed: Any) -> T5Config:
    return T5Config(**sizes(**changed))


def switch(**changed: Any) -> SwitchTransformersConfig:
    return SwitchTransformersConfig(**sizes(**{"num_decoder_layers": 2, "num_experts": 3, **changed}))


CASES = (
    Case("t5", T5ForConditionalGeneration, config()),
    Case(
        "t5-gated-untied",
        UntiedT5,
        config(
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
            num_layers=3,
            num_decoder_layers=2,
            layer_norm_epsilon=1e-3,
        ),
    ),
    Case(
        "t5-few-buckets",
        T5ForConditionalGeneration,
        config(
            relative_attention_num_buckets=8,
            relative_attention_max_distance=13,
            num_decoder_layers=1,
            num_heads=5,
            d_kv=6,
        ),
        lengths=(40, 17, 2),
    ),
    Case(
        "t5-tied-unscaled",
        T5ForConditionalGeneration,
        config(feed_forward_proj="gated-silu", tie_word_embeddings=False),
    ),
    Case("mt5", UntiedMT5, MT5Config(**sizes(num_decoder_layers=1))),
    Case(
        "umt5",
        transformers.UMT5ForConditionalGeneration,
        UMT5Config(**sizes(num_decoder_layers=1)),
        lengths=(40, 17, 2),
    ),
    Case(
        "switch",
        transformers.SwitchTransformersForConditionalGeneration,
        switch(num_layers=4, num_decoder_layers=3, num_sparse_encoder_layers=2, num_sparse_decoder_layers=3),
    ),
    Case("switch-encoder", transformers.SwitchTransformersEncoderModel, switch(num_sparse_encoder_layers=1)),
    Case("t5-encoder", transformers.T5EncoderModel, config(feed_forward_proj="gated-gelu"), lengths=(40, 1, 12)),
    Case("mt5-encoder", transformers.MT5EncoderModel, MT5Config(**sizes(num_layers=3, feed_forward_proj="relu"))),
)
