"""Families with Llama's attention, whose first layers are dense and whose later layers have the experts of DeepSeek-V3.

GLM-4.5 (Z.ai 2025), dots.llm1 (Xiaohongshu 2025), EXAONE MoE (LG AI Research 2026), HY 3 (Tencent 2026), and Solar Open
(Upstage 2026), which has experts in all layers.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.families.common.rope import partial_rope_config, rope_of
from qkv.interop.families.decoders.experts.deepseek import BY_BIAS, IN_GROUPS, further
from qkv.interop.families.decoders.norms.exaone import attentions_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Model

_GLM = experts.ExpertKeys(IN_GROUPS, BY_BIAS, experts.after_first())
_SOLAR = experts.ExpertKeys(IN_GROUPS, BY_BIAS)
_EXAONE = experts.ExpertKeys(
    {**IN_GROUPS, "num_experts": "num_experts", "num_shared": "num_shared_experts"}, BY_BIAS, experts.BY_KIND
)
_HY = experts.ExpertKeys(
    {
        "num_experts": "num_experts",
        "top_k": "num_experts_per_tok",
        "hidden": "moe_intermediate_size",
        "num_shared": "num_shared_experts",
        "scale": "router_scaling_factor",
    },
    {**BY_BIAS, "normalised": True},
    experts.BY_KIND,
)


def spec_of_glm(config: Config, head: Head) -> Model:
    """Build the spec of GLM-4.5: RoPE on half of each head; ``use_qk_norm`` adds norms of queries and keys."""
    more = {"qk_norm": gated.norm_of(config)} if config.flag("use_qk_norm", False) else {}
    attention = _attention(config, relative=rope_of(config, 0.5), output_bias=False, **more)
    return _GLM.spec(config, gated.model_of(config, head, [attention] * config.layers("num_hidden_layers")))


def spec_of_dots(config: Config, head: Head) -> Model:
    """Build the spec of dots.llm1: queries and keys have norms.

    Layers from ``max_window_layers`` on have a sliding window, unless ``layer_types`` is set.
    """
    slides, first = config.has("sliding_window"), config.integer("max_window_layers", 62)
    kinds = gated.kinds_of(config, lambda i: gated.SLIDING if slides and i >= first else gated.FULL)
    attention = _attention(config, qk_norm=gated.norm_of(config))
    layers = [attention.changed(mask=gated.mask_of(config, kind)) for kind in kinds]
    return _GLM.spec(config, gated.model_of(config, head, layers))


def spec_of_solar(config: Config, head: Head) -> Model:
    """Build the spec of Solar Open: experts in every layer."""
    attention = _attention(config, relative=rope_of(config, 1.0), output_bias=False)
    layers = [attention] * config.layers("num_hidden_layers")
    return _SOLAR.spec(config, gated.model_of(config, head, layers, hidden="moe_intermediate_size"))


def spec_of_exaone(config: Config, head: Head) -> Model:
    """Build the spec of EXAONE MoE: the attention of EXAONE 4."""
    return _EXAONE.spec(config, gated.model_of(config, head, attentions_of(config)))


def spec_of_hy(config: Config, head: Head) -> Model:
    """Build the spec of HY 3: norms of queries and keys; the weights of experts sum to ``router_scaling_factor``."""
    config.fixed("mlp_bias", False, "biases of the feed-forward networks")
    attention = _attention(config, qk_norm=gated.norm_of(config))
    return _HY.spec(config, gated.model_of(config, head, [attention] * config.layers("num_hidden_layers")))


def _attention(config: Config, **fields: Any) -> Attention:
    return gated.attention_of(config, bias=config.flag("attention_bias", False), **fields)


def _bias(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
    return {"attention_bias": attention.bias}


def config_of_glm(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""

    def keys(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
        return {"attention_bias": attention.bias, "use_qk_norm": attention.norms_heads}

    return _GLM.config(spec, lambda dense: partial_rope_config(dense, gated.config_of(dense, keys, rope=False)))


def config_of_dots(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = _GLM.config(spec, lambda dense: gated.config_of(dense, _bias))
    if keys is None:
        return None
    masks = gated.masks_config(spec)
    return {**keys, "layer_types": masks["layer_types"], "sliding_window": masks["sliding_window"]}


def config_of_solar(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = _SOLAR.config(spec, lambda dense: partial_rope_config(dense, gated.config_of(dense, _bias, rope=False)))
    return None if keys is None else {key: value for key, value in keys.items() if key != "intermediate_size"}


def config_of_exaone(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    alike, turned = gated.with_rope(spec)
    keys, masks = _EXAONE.config(alike, gated.config_of), gated.masks_config(spec)
    if keys is None or masks["sliding_window"] is None or all(turned):
        return None
    return {**keys, "sliding_window": masks["sliding_window"], "layer_types": masks["layer_types"]}


def config_of_hy(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not HY 3's. Callers read them back to verify."""
    return _HY.config(spec, lambda dense: gated.config_of(dense, _bias))


def _family(name: str, model_type: str, stem: str, **fields: Any) -> Family:
    common = {"names": (*experts.names(experts.MLP), *gated.NAMES), "ignored": gated.IGNORED, **fields}
    return Family(
        name=name,
        model_types=(model_type,),
        architectures={f"{stem}ForCausalLM": language_model(tied=False)},
        prefix="model.",
        ignored_config={
            **HEAD_KEYS,
            **experts.IGNORED_CONFIG,
            "enable_moe_fp32_combine": "precision of the sum with the shared experts",
        },
        **common,
    )


_GLM_SIZES = {
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
}
GLM4_MOE = _family(
    "GLM-4.5",
    "glm4_moe",
    "Glm4Moe",
    spec=spec_of_glm,
    config=config_of_glm,
    ignored={**gated.IGNORED, **further(92, 46)},
    defaults={
        **_GLM_SIZES,
        "vocab_size": 151552,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 46,
        "num_attention_heads": 96,
        "first_k_dense_replace": 1,
    },
    typical={"head_dim": 128},
    synonyms={"num_local_experts": "n_routed_experts"},
)
SOLAR_OPEN = _family(
    "Solar Open",
    "solar_open",
    "SolarOpen",
    spec=spec_of_solar,
    config=config_of_solar,
    defaults={
        **_GLM_SIZES,
        "vocab_size": 196608,
        "moe_intermediate_size": 1280,
        "num_hidden_layers": 48,
        "num_attention_heads": 64,
        "head_dim": 128,
        "rope_theta": 1_000_000.0,
    },
    synonyms={"num_local_experts": "n_routed_experts"},
)
DOTS1 = _family(
    "dots.llm1",
    "dots1",
    "Dots1",
    spec=spec_of_dots,
    config=config_of_dots,
    defaults={
        "vocab_size": 152064,
        "hidden_size": 4608,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "first_k_dense_replace": 0,
        "norm_topk_prob": False,
        "sliding_window": 4096,
    },
    typical={"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2},
    synonyms={"num_local_experts": "n_routed_experts"},
)
EXAONE_MOE = _family(
    "EXAONE MoE",
    "exaone_moe",
    "ExaoneMoe",
    spec=spec_of_exaone,
    config=config_of_exaone,
    names=(*experts.names(experts.MLP, bias="e_score_correction_bias"), *gated.NAMES),
    ignored={**gated.IGNORED, "mtp.*": "part of a multi-token prediction head, which is not loaded"},
    defaults={
        "vocab_size": 102400,
        "hidden_size": 4096,
        "intermediate_size": 16384,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-5,
        "sliding_window": 4096,
        "moe_intermediate_size": 1024,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    },
)
HY3 = _family(
    "HY 3",
    "hy_v3",
    "HYV3",
    spec=spec_of_hy,
    config=config_of_hy,
    names=(
        *experts.names(experts.MLP, router="router.gate", bias="expert_bias", shared="shared_mlp"),
        *gated.NAMES,
    ),
    ignored={**gated.IGNORED, **further(80)},
    defaults={
        "vocab_size": 120832,
        "hidden_size": 4096,
        "intermediate_size": 13312,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 11_158_840.0,
        "num_experts": 192,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1536,
        "router_scaling_factor": 2.826,
    },
    synonyms={"num_local_experts": "num_experts"},
)

register(GLM4_MOE, SOLAR_OPEN, DOTS1, EXAONE_MOE, HY3)
