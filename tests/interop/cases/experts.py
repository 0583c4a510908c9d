"""Decoders with experts: in all layers or in some, chosen from groups, with shared ones, with latent attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.interop.cases import rotary
from tests.interop.cases.case import Case
from tests.interop.cases.rotary import MIXED

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
ROUTED = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 12,
    "n_shared_experts": 2,
    "n_group": 3,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}
LATENT = {
    "head_dim": "absent",
    "num_key_value_heads": 4,
    "kv_lora_rank": 10,
    "q_lora_rank": 7,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 8.0, "original_max_position_embeddings": 16}
LISTED = {"mlp_layer_types": ["sparse", "dense", "sparse"], "num_hidden_layers": 3, "first_k_dense_replace": "absent"}
DRAWN = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4}


def case(name: str, stem: str, **fields: Any) -> Case:
    """A case of sizes that the library's grouped products can compute."""
    sizes = {"hidden_size": 32, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
    return rotary.case(name, stem, **{**sizes, **fields})


def named_otherwise(made: Case, *others: tuple[str, str]) -> Case:
    """The case of a class whose parameters have other names than in the files: pairs of (in the file, in the class)."""
    places = [f"model.layers.{layer}.mlp." for layer in range(made.config.num_hidden_layers)]
    return replace(made, renamed={place + stored: place + name for place in places for stored, name in others})


def _shared(file: str) -> tuple[tuple[str, str], ...]:
    parts = ("gate_proj", "up_proj", "down_proj")
    return tuple((f"{file}.{part}.weight", f"shared_experts.{part}.weight") for part in parts)


def minimax(**fields: Any) -> Case:
    made = case("minimax-m2", "MiniMaxM2", head_dim=8, num_local_experts=4, num_experts_per_tok=2, **fields)
    made.config.rope_parameters["partial_rotary_factor"] = 0.5
    return made


CASES = (
    case("mixtral", "Mixtral", intermediate_size=24, num_local_experts=5, num_experts_per_tok=2, sliding_window=6),
    case("qwen3-moe", "Qwen3Moe", **{**EXPERTS, "num_experts_per_tok": 3}, norm_topk_prob=True),
    case("qwen3-moe-sums", "Qwen3Moe", **{**EXPERTS, "num_experts_per_tok": 1}, mlp_only_layers=[0]),
    case(
        "qwen2-moe",
        "Qwen2Moe",
        head_dim="absent",
        **EXPERTS,
        decoder_sparse_step=2,
        shared_expert_intermediate_size=10,
        use_sliding_window=True,
        sliding_window=5,
    ),
    case("olmoe", "Olmoe", head_dim="absent", num_experts=4, num_experts_per_tok=2, norm_topk_prob=True),
    case("flex-olmo", "FlexOlmo", head_dim="absent", num_experts=4, num_experts_per_tok=2),
    minimax(),
    case("glm4-moe", "Glm4Moe", head_dim=8, **ROUTED, use_qk_norm=True, attention_bias=True, routed_scaling_factor=1.5),
    case("dots1", "Dots1", **ROUTED, **DRAWN),
    case("solar-open", "SolarOpen", **{**ROUTED, "n_group": 1, "topk_group": 1}, intermediate_size="absent"),
    case(
        "exaone-moe",
        "ExaoneMoe",
        **EXPERTS,
        head_dim="absent",
        num_shared_experts=2,
        **{**DRAWN, **LISTED, "layer_types": MIXED},
    ),
    named_otherwise(
        case("hy-v3", "HYV3", **EXPERTS, router_scaling_factor=1.7),
        ("router.gate.weight", "gate.weight"),
        *_shared("shared_mlp"),
    ),
    case(
        "ernie-moe",
        "Ernie4_5_Moe",
        head_dim="absent",
        moe_num_experts=4,
        moe_k=2,
        moe_intermediate_size=12,
    ),
    named_otherwise(
        case("aria-text", "AriaText", moe_num_experts=4, moe_topk=2, moe_num_shared_experts=2),
        ("experts.fc1.weight", "experts.gate_up_proj"),
        ("experts.fc2.weight", "experts.down_proj"),
    ),
    case("gpt-oss", "GptOss", num_local_experts=4, num_experts_per_tok=2, swiglu_limit=0.5, sliding_window=4),
    case(
        "deepseek-v3", "DeepseekV3", **ROUTED, **LATENT, rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
    ),
    case(
        "deepseek-v2",
        "DeepseekV2",
        **{**ROUTED, **LATENT, "q_lora_rank": None},
        topk_method="group_limited_greedy",
        rope_parameters={**YARN, "mscale": 0.707, "mscale_all_dim": 0.5},
    ),
    case("glm4-moe-lite", "Glm4MoeLite", **{**ROUTED, **LATENT, **LISTED}),
    case("youtu", "Youtu", **LATENT, tie_word_embeddings=True),
    case(
        "minicpm3",
        "MiniCPM3",
        **LATENT,
        scale_emb=3.0,
        scale_depth=0.7,
        dim_model_base=11,
        rope_parameters={**YARN, "mscale_all_dim": 1.0},
    ),
    case("minicpm3-plain", "MiniCPM3", **{**LATENT, "q_lora_rank": None}, scale_depth=None, dim_model_base=None),
)
