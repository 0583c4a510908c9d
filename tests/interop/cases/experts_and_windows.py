"""Decoders with experts whose layers differ in window, heads or mixer, and those of Granite, Hunyuan and DBRX."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.interop.cases.case import Case
from tests.interop.cases.experts import LATENT, LISTED, ROUTED, case, named_otherwise
from tests.interop.cases.hybrid import named
from tests.interop.cases.rotary import MIXED

CHOSEN = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
FACTORS = {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3, "logits_scaling": 2.0}
GRANITE = {"head_dim": "absent", "num_local_experts": 4, "num_experts_per_tok": 2}
LAYERS = {"num_hidden_layers": 3, "layer_types": MIXED, "sliding_window": 4}
LLAMA4 = {
    "num_hidden_layers": 3,
    "head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size_mlp": 20,
}
TABLES = {
    "full_attention": {"rope_type": "default", "rope_theta": 900.0, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 70.0, "partial_rotary_factor": 1.0},
}


def granite(name: str, stem: str, **fields: Any) -> Case:
    return replace(case(name, stem, **{**GRANITE, **FACTORS, **fields}), joined=named)


def inside(made: Case, place: str, *others: tuple[str, str]) -> Case:
    """The case of a class whose parameters in ``place`` have other names than in the files."""
    places = [f"model.layers.{layer}.{place}" for layer in range(made.config.num_hidden_layers)]
    more = {at + stored: at + name for at in places for stored, name in others}
    return replace(made, renamed={**made.renamed, **more})


def dbrx() -> Case:
    others = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
    absent = dict.fromkeys(("head_dim", "intermediate_size", "num_key_value_heads", *others), "absent")
    return case(
        "dbrx",
        "Dbrx",
        **absent,
        d_model=32,
        n_layers=2,
        n_heads=4,
        max_seq_len=128,
        attn_config={"kv_n_heads": 2, "clip_qkv": 0.5, "rope_theta": 900.0},
        ffn_config={"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
        rope_parameters={"rope_type": "default", "rope_theta": 900.0},
    )


def mimo(name: str, head_dim: int) -> Case:
    made = case(
        name,
        "MiMoV2Flash",
        **{**CHOSEN, "num_experts": "absent"},
        **LAYERS,
        n_routed_experts=4,
        head_dim=head_dim,
        v_head_dim=6,
        attention_bias=True,
        attention_value_scale=0.6,
    )
    return inside(made, "self_attn.", ("attention_sink_bias", "sinks"))


def laguna() -> Case:
    made = case(
        "laguna",
        "Laguna",
        **CHOSEN,
        **LAYERS,
        head_dim=8,
        shared_expert_intermediate_size=10,
        num_attention_heads_per_layer=[4, 2, 6],
        moe_routed_scaling_factor=1.5,
        rope_parameters=TABLES,
    )
    parts = ("gate_proj", "up_proj", "down_proj")
    return named_otherwise(made, *((f"shared_expert.{part}.weight", f"shared_experts.{part}.weight") for part in parts))


CASES = (
    granite("granite-moe", "GraniteMoe", attention_bias=True),
    granite("granite-moe-shared", "GraniteMoeShared", shared_intermediate_size=20),
    granite("granite-moe-shared-none", "GraniteMoeShared", num_local_experts=5),
    granite(
        "granite-moe-swa",
        "GraniteMoeSWA",
        **LAYERS,
        layer_rope_theta=[900.0, 0, 7e4],
        shared_intermediate_size=20,
    ),
    case("hunyuan-moe", "HunYuanMoEV1", num_experts=4, moe_topk=2, attention_bias=True),
    case(
        "lfm2-moe",
        "Lfm2Moe",
        head_dim="absent",
        **CHOSEN,
        num_hidden_layers=3,
        layer_types=["conv", "full_attention", "conv"],
        num_dense_layers=1,
        conv_L_cache=4,
        routed_scaling_factor=1.5,
    ),
    case(
        "afmoe",
        "Afmoe",
        **CHOSEN,
        **LAYERS,
        num_shared_experts=2,
        num_dense_layers=1,
        route_scale=1.5,
        mup_enabled=True,
    ),
    inside(
        case(
            "flint",
            "Flint",
            **CHOSEN,
            **LAYERS,
            head_dim=8,
            mlp_only_layers=[1],
            shared_expert_intermediate_size=10,
            attention_bias=True,
        ),
        "self_attn.",
        ("softmax_offset", "sinks"),
    ),
    case(
        "mellum",
        "Mellum",
        **CHOSEN,
        **LAYERS,
        head_dim=8,
        rope_parameters={kind: {**table, "partial_rotary_factor": 1.0} for kind, table in TABLES.items()},
        mlp_layer_types=["sparse", "dense", "sparse"],
    ),
    laguna(),
    mimo("mimo-v2-flash", 24),
    mimo("mimo-v2-flash-odd", 16),
    case(
        "cohere2-moe",
        "Cohere2Moe",
        **{**CHOSEN, "moe_intermediate_size": "absent"},
        **LAYERS,
        head_dim=8,
        num_shared_experts=2,
        prefix_dense_intermediate_size=20,
        mlp_layer_types=["sparse", "dense", "sparse"],
    ),
    case(
        "cohere2-moe-sums",
        "Cohere2Moe",
        **{**CHOSEN, "moe_intermediate_size": "absent"},
        head_dim=8,
        num_shared_experts=1,
        shared_expert_combination_strategy="sum",
        expert_selection_fn="sigmoid",
        rms_norm_eps=1e-3,
        prefix_dense_sliding_window_pattern=2,
        first_k_dense_replace=1,
    ),
    dbrx(),
    inside(
        case(
            "phimoe",
            "Phimoe",
            head_dim="absent",
            num_local_experts=4,
            router_jitter_noise=0.4,
            attention_bias=True,
            lm_head_bias=True,
            sliding_window=4,
        ),
        "mlp.",
        ("gate.weight", "router.weight"),
    ),
    inside(
        case(
            "phimoe-longrope",
            "Phimoe",
            head_dim="absent",
            num_local_experts=4,
            original_max_position_embeddings=64,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 900.0,
                "short_factor": [1.0, 1.1, 1.2, 1.3],
                "long_factor": [1.0, 2.0, 3.0, 4.0],
                "short_mscale": 1.2,
                "long_mscale": 1.2,
                "original_max_position_embeddings": 64,
            },
        ),
        "mlp.",
        ("gate.weight", "router.weight"),
    ),
    replace(
        case(
            "llama4-text",
            "Llama4",
            config="Llama4Text",
            **LLAMA4,
            moe_layers=[0, 2],
            no_rope_layers=[1, 0, 1],
            attention_chunk_size=4,
            floor_scale=3,
        ),
        left=False,
    ),
    case("llama4-plain", "Llama4", config="Llama4Text", **LLAMA4, use_qk_norm=False, attn_temperature_tuning=False),
    inside(
        case(
            "kolibri",
            "Kolibri1",
            **CHOSEN,
            **{**LAYERS, "intermediate_size": "absent"},
            head_dim=8,
            shared_expert_intermediate_size=10,
            norm_topk_prob=True,
        ),
        "",
        ("post_attn_norm.weight", "post_self_attn_layernorm.weight"),
        ("post_ffn_norm.weight", "post_mlp_layernorm.weight"),
    ),
    inside(
        case("axk1", "AXK1", **{**ROUTED, **LATENT, **LISTED}),
        "",
        ("post_mlp_layernorm.weight", "mlp.post_mlp_layernorm.weight"),
    ),
)
