"""Phi-3.5-MoE (Microsoft 2024): Llama's attention, layer norms with bias, and experts weighted by the sparse mixer."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.heads import HEAD_KEYS, of_decoder
from qkv.interop.families.common.rope import rope_of, table_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.masks import Causal
from qkv.spec.model import Model
from qkv.spec.parts import LayerNorm, LongRopeScaling, Rope
from qkv.system.errors import UserError

_KEYS = experts.ExpertKeys(
    {"num_experts": "num_local_experts", "hidden": "intermediate_size", "jitter": "router_jitter_noise"},
    {"top_k": 2, "router": "sparse_mixer", "normalised": False},
)
_SCALES = ("short_mscale", "long_mscale")


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Phi-3.5-MoE: two experts per position; ``attention_bias`` adds biases."""
    mask = gated.windowed(config.integer("sliding_window")) if config.has("sliding_window") else Causal()
    attention = gated.attention_of(config, bias=config.flag("attention_bias", False), mask=mask, relative=_rope(config))
    norm = LayerNorm(eps=gated.norm_of(config).eps)
    layers = [attention] * config.layers("num_hidden_layers")
    return _KEYS.spec(config, gated.model_of(config, head, layers, norm=norm))


def _rope(config: Config) -> Rope:
    """Build the RoPE. Raises ``UserError`` for a scaling other than LongRoPE, or if its scale changes with length."""
    rope, table = rope_of(config), table_of(config)
    if rope.scaling is None:
        return rope
    short, long = (table.number(key) for key in _SCALES)
    if not isinstance(rope.scaling, LongRopeScaling) or short != long:
        raise UserError(
            f"{table.source}: only LongRoPE with one scale is supported, but {' and '.join(_SCALES)} are "
            f"{short:g} and {long:g}, and the scaling is {rope.scaling.kind}"
        )
    return rope.changed(scaling=rope.scaling.changed(magnitude=short))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = _KEYS.config(spec, lambda dense: gated.config_of(dense, _attention))
    if keys is None or "layer_norm_eps" not in keys:
        return None
    table = keys.get("rope_scaling", {})
    if table:
        table |= dict.fromkeys(_SCALES, table.get("attention_factor"))
    eps = keys.pop("layer_norm_eps")
    return {**keys, "rms_norm_eps": eps, "num_experts_per_tok": 2}


def _attention(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
    return {"attention_bias": attention.bias, "sliding_window": gated.window_of(attention)}


def _head(config: Config) -> Head:
    return LanguageModelHead(tied=config.flag("tie_word_embeddings", False), bias=config.flag("lm_head_bias", False))


def _head_keys(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, LanguageModelHead) or head != LanguageModelHead(tied=head.tied, bias=head.bias):
        return None
    return {"tie_word_embeddings": head.tied, "lm_head_bias": head.bias}


PHIMOE = Family(
    name="Phi-3.5-MoE",
    model_types=("phimoe",),
    architectures={
        "PhimoeForCausalLM": Architecture(_head, _head_keys, (NameRule("head.*", "lm_head.*"),)),
        **of_decoder("Phimoe", tags=None, question_answering=False),
    },
    spec=spec,
    config=config,
    names=(*experts.names("model.layers.{layer}.block_sparse_moe", ("w1", "w3", "w2")), *gated.NAMES),
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={
        **HEAD_KEYS,
        **experts.IGNORED_CONFIG,
        "input_jitter_noise": "training",
        "num_experts_per_tok": "the published code always chooses two experts",
    },
    synonyms={"num_experts": "num_local_experts"},
    defaults={
        "vocab_size": 32064,
        "hidden_size": 4096,
        "intermediate_size": 6400,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "num_local_experts": 16,
        "router_jitter_noise": 0.01,
    },
)

register(PHIMOE)
