"""A.X-K1 (SK Telecom 2026): DeepSeek-V3 with a norm of the experts' output."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import experts, gated, latent
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.decoders.experts.deepseek import BY_BIAS, IN_GROUPS, further
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model

_KEYS = experts.ExpertKeys(IN_GROUPS, BY_BIAS, experts.BY_KIND)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of A.X-K1: the experts' output has a norm, that of a dense network has none."""
    config.fixed("moe_layer_freq", 1, "which layers have experts")
    keys = experts.ExpertKeys(IN_GROUPS, {**BY_BIAS, "norm": gated.norm_of(config)}, experts.BY_KIND)
    return keys.spec(config, latent.interleaved_model_of(config, head))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not A.X-K1's. Callers read them back to verify."""
    return _KEYS.config(spec, latent.config_of)


AXK1 = Family(
    name="A.X-K1",
    model_types=("axk1",),
    architectures={"AXK1ForCausalLM": language_model(tied=False), **of_decoder("AXK1", question_answering=False)},
    spec=spec,
    config=config,
    names=(
        NameRule(f"{experts.OURS}norm.weight", "model.layers.{layer}.post_mlp_layernorm.weight"),
        *latent.NAMES,
        *experts.names(experts.MLP),
        *gated.NAMES,
    ),
    prefix="model.",
    ignored={
        **gated.IGNORED,
        **further(61),
        "model.layers.{layer}.post_mlp_layernorm.weight": "not used in layers without experts",
    },
    ignored_config={
        **HEAD_KEYS,
        **experts.IGNORED_CONFIG,
        **dict.fromkeys(("head_dim", "qk_head_dim"), "given by qk_nope_head_dim and qk_rope_head_dim"),
    },
    synonyms={"num_local_experts": "n_routed_experts"},
    defaults={
        "vocab_size": 163840,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "n_shared_experts": 1,
        "n_routed_experts": 192,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 128,
        "n_group": 8,
        "topk_group": 4,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "max_position_embeddings": 32768,
    },
)

register(AXK1)
