"""Ministral 3 (Mistral AI 2025): Mistral's blocks with YaRN, and a scale of queries that grows with their position."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.common.rope import ORIGINAL, rope_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.branches import Attention, QueryScale
from qkv.spec.heads import Head
from qkv.spec.masks import Causal
from qkv.spec.model import Model

_RATE = "llama_4_scaling_beta"


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Ministral 3.

    ``llama_4_scaling_beta`` in the RoPE table is the rate at which the scale of queries grows at each multiple of
    ``original_max_position_embeddings``.
    """
    config.nulls.discard("rope_parameters")  # null means the default, as in the published config class
    table = config.table("rope_scaling") if config.table("rope_scaling").values else config.table("rope_parameters")
    rate, length = table.number(_RATE), table.integer(ORIGINAL)
    mask = gated.windowed(config.integer("sliding_window")) if config.has("sliding_window") else Causal()
    scale = QueryScale(rate=rate, length=length) if rate else None
    attention = gated.attention_of(config, mask=mask, relative=rope_of(config), query_scale=scale)
    return gated.model_of(config, head, [attention] * config.layers("num_hidden_layers"))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = gated.config_of(spec, lambda attention, _: {"sliding_window": gated.window_of(attention)})
    match spec.layers[:1]:
        case (block,) if keys is not None and "rope_scaling" in keys:
            attention = block.branches[0]
        case _:
            return None
    scale = attention.query_scale if isinstance(attention, Attention) else None
    table = {"rope_theta": keys.pop("rope_theta"), **keys.pop("rope_scaling")}
    return {**keys, "rope_parameters": {**table, _RATE: scale.rate if scale else 0.0}}


MINISTRAL3 = Family(
    name="Ministral 3",
    model_types=("ministral3",),
    architectures={"Ministral3ForCausalLM": language_model(tied=False), **of_decoder("Ministral3")},
    spec=spec,
    config=config,
    names=gated.NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config=HEAD_KEYS,
    defaults={
        "vocab_size": 131072,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 34,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1_000_000.0,
            "factor": 16.0,
            ORIGINAL: 16384,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale_all_dim": 1.0,
            "mscale": 1.0,
            _RATE: 0.1,
        },
    },
    base="Mistral",
)

register(MINISTRAL3)
