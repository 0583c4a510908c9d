"""Seed-OSS (ByteDance 2025): Llama's blocks with biases of queries, keys and values."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Seed-OSS: biases of q, k and v, of the output and of the feed-forward have separate keys."""
    attention = gated.attention_of(
        config, bias=config.flag("attention_bias", True), output_bias=config.flag("attention_out_bias", False)
    )
    layers = config.layers("num_hidden_layers")
    return gated.model_of(config, head, [attention] * layers, config.flag("mlp_bias", False))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    return gated.config_of(
        spec,
        lambda attention, feed_forward: {
            "attention_bias": attention.bias,
            "attention_out_bias": attention.ends_with_bias,
            "mlp_bias": feed_forward.bias,
        },
    )


SEED_OSS = Family(
    name="Seed-OSS",
    model_types=("seed_oss",),
    architectures={"SeedOssForCausalLM": language_model(tied=False), **of_decoder("SeedOss")},
    spec=spec,
    config=config,
    names=gated.NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={**HEAD_KEYS, "residual_dropout": "dropout in training, which a recipe sets"},
    defaults={
        "vocab_size": 155136,
        "hidden_size": 4096,
        "intermediate_size": 27648,
        "num_hidden_layers": 64,
        "num_attention_heads": 80,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 524288,
        "attention_dropout": 0.1,
    },
    base="Llama",
)

register(SEED_OSS)
