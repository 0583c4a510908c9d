"""LFM2 with experts (Liquid AI 2025): the mixers of LFM2, and experts in all but the first layers."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.families.common.rope import rope_of
from qkv.interop.families.decoders.experts.deepseek import BY_BIAS
from qkv.interop.families.decoders.hybrid import lfm2
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.parts import RMSNorm
from qkv.spec.position_wise.experts import BalanceBias

_BIASED = experts.ExpertKeys(
    {
        "num_experts": "num_experts",
        "top_k": "num_experts_per_tok",
        "hidden": "moe_intermediate_size",
        "scale": "routed_scaling_factor",
        "normalised": "norm_topk_prob",
    },
    BY_BIAS,
    experts.after_first("num_dense_layers"),
)
_UNBIASED = experts.ExpertKeys(_BIASED.keys, {"router": "sigmoid"}, _BIASED.places)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of LFM2 with experts.

    Layers from ``num_dense_layers`` on have experts; ``use_expert_bias`` adds a bias to their choice.
    """
    norm = RMSNorm(eps=config.number("norm_eps"))
    attention = gated.attention_of(config, qk_norm=norm, relative=rope_of(config))
    keys = _BIASED if config.flag("use_expert_bias", True) else _UNBIASED
    return keys.spec(config, gated.model_of(config, head, lfm2.mixers_of(config, attention), norm=norm))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = _BIASED.config(spec, lfm2.config)
    if keys is None:
        return None
    biased = any(isinstance(getattr(block.branches[1], "balance", None), BalanceBias) for block in spec.layers)
    return {key: value for key, value in keys.items() if not key.startswith("block_")} | {"use_expert_bias": biased}


LFM2_MOE = Family(
    name="LFM2 with experts",
    base="LFM2",
    model_types=("lfm2_moe",),
    architectures={"Lfm2MoeForCausalLM": language_model(tied=True)},
    spec=spec,
    config=config,
    names=(
        *experts.names("model.layers.{layer}.feed_forward", ("w1", "w3", "w2"), bias="expert_bias"),
        *lfm2.MIXER_NAMES,
        *lfm2.DENSE_NAMES,
    ),
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={**HEAD_KEYS, **experts.IGNORED_CONFIG},
    synonyms={"tie_embedding": "tie_word_embeddings"},
    defaults={
        "vocab_size": 65536,
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "moe_intermediate_size": 1792,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 128_000,
        "norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "conv_bias": False,
        "conv_L_cache": 3,
        "num_dense_layers": 2,
        "num_experts_per_tok": 4,
        "num_experts": 32,
        "norm_topk_prob": True,
    },
)

register(LFM2_MOE)
