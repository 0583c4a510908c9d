"""DeepSeek-V2 and V3 (DeepSeek-AI 2024): latent attention, dense first layers, then experts that are chosen by groups.

GLM-4.7-Flash (Z.ai 2026), Youtu-LLM (Tencent 2025, without experts) and Kimi-K2 (Moonshot AI 2025) have the same
structure.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import experts, gated, latent
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import Reasons
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.position_wise.experts import BalanceBias

CHOSEN = {
    "num_experts": "n_routed_experts",
    "top_k": "num_experts_per_tok",
    "hidden": "moe_intermediate_size",
    "num_shared": "n_shared_experts",
    "scale": "routed_scaling_factor",
}
"""Config keys of experts that DeepSeek-V2 and V3 share."""
IN_GROUPS = {**CHOSEN, "normalised": "norm_topk_prob", "groups": "n_group", "top_groups": "topk_group"}
BY_BIAS = {"router": "sigmoid", "balance": BalanceBias()}
"""Router of DeepSeek-V3: logistic scores, with a bias that is used in the choice only."""
_V2 = experts.ExpertKeys(CHOSEN, {"normalised": False}, experts.after_first())
_V2_GROUPS = experts.ExpertKeys(
    {**CHOSEN, "groups": "n_group", "top_groups": "topk_group"},
    {"normalised": False, "group_best": 1},
    experts.after_first(),
)
_V3 = experts.ExpertKeys(IN_GROUPS, BY_BIAS, experts.after_first())
_LISTED = experts.ExpertKeys(IN_GROUPS, BY_BIAS, experts.BY_KIND)
_METHODS = {"greedy": _V2, "group_limited_greedy": _V2_GROUPS}


def spec_of_v2(config: Config, head: Head) -> Model:
    """Build the spec of DeepSeek-V2: router scores are a softmax over all experts.

    ``topk_method`` "group_limited_greedy": experts are chosen only from the groups with the largest single scores.
    """
    config.fixed("mlp_bias", False, "biases of the feed-forward networks")
    keys: experts.ExpertKeys = config.word("topk_method", "greedy", _METHODS)
    return keys.spec(config, latent.model_of(config, head))


def spec_of_v3(config: Config, head: Head) -> Model:
    """Build the spec of DeepSeek-V3: router scores are logistic, plus a bias in the choice of groups and experts."""
    return _V3.spec(config, latent.interleaved_model_of(config, head))


def spec_of_listed(config: Config, head: Head) -> Model:
    """Build the spec of a family in which ``mlp_layer_types`` lists the layers with experts."""
    return _LISTED.spec(config, latent.interleaved_model_of(config, head))


def config_of_v2(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = _V2_GROUPS.config(spec, latent.config_of)
    if keys is None:
        return None
    return {**keys, "topk_method": "greedy" if keys["n_group"] == 1 else "group_limited_greedy"}


def config_of_v3(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    return _V3.config(spec, latent.config_of)


def config_of_listed(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    return _LISTED.config(spec, latent.config_of)


def _family(name: str, model_type: str, stem: str, heads: dict[str, Architecture], **fields: Any) -> Family:
    further: Reasons = fields.pop("further", {})
    return Family(
        name=name,
        model_types=(model_type, *fields.pop("other_types", ())),
        architectures={f"{stem}ForCausalLM": language_model(tied=fields.pop("tied", False)), **heads},
        names=(*latent.NAMES, *experts.names(experts.MLP), *gated.NAMES),
        prefix="model.",
        ignored={**gated.IGNORED, **further},
        ignored_config={
            **HEAD_KEYS,
            **experts.IGNORED_CONFIG,
            **dict.fromkeys(("head_dim", "qk_head_dim"), "given by qk_nope_head_dim and qk_rope_head_dim"),
            **dict.fromkeys(
                ("moe_layer_freq", "norm_topk_prob"), "read by the published code of this family only where qkv does"
            ),
            "embedding_initializer_range": "initialisation",
        },
        **fields,
    )


def further(*layers: int) -> Reasons:
    """Return the layers of multi-token prediction in published files, with the reason for ignoring them."""
    return {f"model.layers.{layer}.*": "part of a multi-token prediction head, which is not loaded" for layer in layers}


_HEADS = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_V3_DEFAULTS = {
    **_HEADS,
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "routed_scaling_factor": 2.5,
    "q_lora_rank": 1536,
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "max_position_embeddings": 4096,
}
_SYNONYMS = {"num_local_experts": "n_routed_experts"}
DEEPSEEK_V3 = _family(
    "DeepSeek-V3",
    "deepseek_v3",
    "DeepseekV3",
    of_decoder("DeepseekV3", question_answering=False),
    spec=spec_of_v3,
    config=config_of_v3,
    other_types=("kimi_k2",),  # its folder holds DeepSeek-V3's code under another name
    further=further(61),
    defaults=_V3_DEFAULTS,
    synonyms=_SYNONYMS,
)
DEEPSEEK_V2 = _family(
    "DeepSeek-V2",
    "deepseek_v2",
    "DeepseekV2",
    of_decoder("DeepseekV2", tags=None, question_answering=False),
    spec=spec_of_v2,
    config=config_of_v2,
    defaults={
        **_HEADS,
        "vocab_size": 102400,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "moe_intermediate_size": 1407,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "n_shared_experts": 2,
        "n_routed_experts": 64,
        "q_lora_rank": 1536,
        "first_k_dense_replace": 0,
    },
    typical={"num_experts_per_tok": 6, "topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3},
    synonyms={"num_experts": "n_routed_experts"},
)
GLM4_MOE_LITE = _family(
    "GLM-4.7-Flash",
    "glm4_moe_lite",
    "Glm4MoeLite",
    {},
    spec=spec_of_listed,
    config=config_of_listed,
    further=further(47),
    defaults={
        **_V3_DEFAULTS,
        "vocab_size": 154880,
        "hidden_size": 2048,
        "intermediate_size": 10240,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 47,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "n_routed_experts": 64,
        "routed_scaling_factor": 1.8,
        "q_lora_rank": 768,
        "v_head_dim": 256,
        "qk_nope_head_dim": 192,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 4,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 202752,
        "rms_norm_eps": 1e-5,
    },
    synonyms={**_SYNONYMS, "head_dim": "qk_rope_head_dim"},
)
YOUTU = _family(
    "Youtu",
    "youtu",
    "Youtu",
    {},
    tied=True,
    spec=latent.interleaved_model_of,
    config=latent.config_of,
    defaults={
        **_HEADS,
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": 1536,
        "max_position_embeddings": 131072,
    },
)

register(DEEPSEEK_V3, DEEPSEEK_V2, GLM4_MOE_LITE, YOUTU)
