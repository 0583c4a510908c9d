"""Decoders whose layers have mixers of different kinds: short convolutions, the delta rule, state spaces, attention."""

from __future__ import annotations

import re
from typing import Any

import torch
import transformers as hf
from tests.interop.cases.case import Case
from tests.interop.cases.llama import SIZES
from tests.interop.cases.rotary import EXPERT, joined
from torch import Tensor


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients as Nemotron-H holds its experts, whose networks have no gate; an expert without any counts as 0."""
    names = {name.replace("backbone.", "model."): tensor for name, tensor in tensors.items()}
    single = {name: match for name in names if (match := EXPERT.fullmatch(name))}
    out = {name: tensor for name, tensor in names.items() if name not in single}
    for prefix, part in {(match[1], match[3]) for match in single.values()}:
        parts = {int(m[2]): names[name] for name, m in single.items() if (m[1], m[3]) == (prefix, part)}
        none = torch.zeros_like(next(iter(parts.values())))
        out[f"{prefix}.experts.{part}"] = torch.stack([parts.get(i, none) for i in range(6)])
    return out


def named(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients under the names of the hybrid Granite's parameters, which differ from those in its files."""
    pairs = {
        "block_sparse_moe.input_linear.weight": "block_sparse_moe.experts.gate_up_proj",
        "block_sparse_moe.output_linear.weight": "block_sparse_moe.experts.down_proj",
        "router.layer.weight": "router.weight",
    }
    found = {}
    for name, tensor in tensors.items():
        for theirs, parameter in pairs.items():
            name = name.replace(theirs, parameter)
        found[name] = tensor
    return found


def gated(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients under the names of LFM3's parameters."""
    return {name.replace("self_attn.gate_proj", "self_attn.g_proj"): tensor for name, tensor in tensors.items()}


def convolved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of OLMo Hybrid, with convolutions of queries, keys and values in one."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        whole = re.sub("[qkv]_conv1d", "conv1d", name)
        found[whole] = torch.cat((found[whole], tensor)) if whole in found else tensor
    return found


CONFIGS = {"Qwen3_5": "Qwen3_5Text", "Qwen3_5Moe": "Qwen3_5MoeText"}
JOINED = {"NemotronH": stacked, "GraniteMoeHybrid": named, "OlmoHybrid": convolved, "Lfm3": gated}


def case(name: str, stem: str, cached: bool = True, left: bool = True, **changed: Any) -> Case:
    """A case of the language model of ``stem``; ``cached`` and ``left``: see ``Case``."""
    given = {**SIZES, "hidden_size": 24, "pad_token_id": None, **changed}
    given = {key: value for key, value in given.items() if value != "absent"}
    config = getattr(hf, f"{CONFIGS.get(stem, stem)}Config")(**given)
    kind, gradients = getattr(hf, f"{stem}ForCausalLM"), JOINED.get(stem, joined)
    return Case(name, kind, config, steps=16, cached=cached, left=left, joined=gradients)


DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 5,
    "linear_conv_kernel_dim": 3,
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 12,
    "num_hidden_layers": 2,
}
MAMBA2 = {
    "mamba_n_heads": 6,
    "mamba_d_head": 8,
    "mamba_d_state": 5,
    "mamba_n_groups": 2,
    "mamba_d_conv": 3,
    "mamba_chunk_size": 4,
    "hidden_size": 24,
}
CASES = (
    case(
        "lfm2",
        "Lfm2",
        num_hidden_layers=3,
        layer_types=["conv", "full_attention", "conv"],
        block_multiple_of=10,
        conv_L_cache=4,
        norm_eps=1e-3,
    ),
    case(
        "mamba2",
        "Mamba2",
        num_heads=6,
        head_dim=8,
        state_size=5,
        n_groups=3,
        conv_kernel=3,
        use_conv_bias=False,
        layer_norm_epsilon=1e-3,
        chunk_size=4,
    ),
    case("mamba", "Mamba", state_size=5, conv_kernel=3, time_step_rank=3, use_conv_bias=False),
    case("falcon-mamba", "FalconMamba", state_size=5, mixer_rms_eps=1e-3, layer_norm_epsilon=1e-3),
    case("bamba", "Bamba", cached=False, attn_layer_indices=[1], mlp_bias=True, attention_bias=True, **MAMBA2),
    case(
        "granite-hybrid",
        "GraniteMoeHybrid",
        layer_types=["linear_attention", "full_attention"],
        num_local_experts=4,
        intermediate_size=16,
        shared_intermediate_size=20,
        embedding_multiplier=3.0,
        residual_multiplier=0.5,
        attention_multiplier=0.3,
        logits_scaling=2.0,
        **MAMBA2,
    ),
    case(
        "granite-hybrid-dense",
        "GraniteMoeHybrid",
        layer_types=["full_attention", "linear_attention"],
        num_local_experts=0,
        shared_intermediate_size=20,
        position_embedding_type="rope",
        **MAMBA2,
    ),
    case(
        "nemotron-h",
        "NemotronH",
        layers_block_type=["linear_attention", "moe", "full_attention", "mlp"],
        ssm_state_size=5,
        mamba_num_heads=4,
        mamba_head_dim=9,
        n_groups=2,
        head_dim=10,
        chunk_size=4,
        n_routed_experts=6,
        moe_intermediate_size=12,
        moe_shared_expert_intermediate_size=20,
        n_group=3,
        topk_group=2,
        num_experts_per_tok=3,
        routed_scaling_factor=1.5,
    ),
    case(
        "qwen3-next",
        "Qwen3Next",
        mlp_only_layers=[0],
        **{**EXPERTS, **DELTA, "linear_num_value_heads": 4, "num_key_value_heads": 3},
    ),
    case(
        "olmo-hybrid",
        "OlmoHybrid",
        **{**DELTA, "linear_num_value_heads": 4, "linear_value_head_dim": 2, "head_dim": "absent"},
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    ),
    case(
        "olmo-hybrid-nope",
        "OlmoHybrid",
        linear_value_head_dim=6,
        linear_allow_neg_eigval=False,
        layer_types=["full_attention", "linear_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": None},
    ),
    case(
        "jamba",
        "Jamba",
        num_hidden_layers=3,
        intermediate_size=24,  # the library's grouped products need multiples of four
        attn_layer_period=3,
        attn_layer_offset=1,
        num_experts=3,
        num_experts_per_tok=2,
        mamba_d_state=5,
        mamba_d_conv=3,
        mamba_dt_rank=2,
    ),
    case(
        "recurrent-gemma",
        "RecurrentGemma",
        left=False,
        num_hidden_layers=3,
        block_types=["recurrent", "attention", "recurrent"],
        attention_window_size=4,
        lru_width=24,
        conv1d_width=3,
        logits_soft_cap=5.0,
        attention_bias=True,
    ),
    case(
        "falcon-h1",
        "FalconH1",
        **{**MAMBA2, "mamba_d_ssm": 48, "mamba_rms_norm": True},
        lm_head_multiplier=0.3,
        embedding_multiplier=2.0,
        mlp_multipliers=[0.6, 1.7],
        key_multiplier=0.5,
        attention_in_multiplier=1.3,
        attention_out_multiplier=0.8,
        ssm_multipliers=[0.7, 1.2, 0.9, 1.1, 0.6],
        ssm_in_multiplier=1.4,
        ssm_out_multiplier=0.5,
    ),
    case("falcon-h1-plain", "FalconH1", **{**MAMBA2, "mamba_d_ssm": 48}, num_hidden_layers=3, mlp_bias=True),
    case(
        "jamba-dense",
        "Jamba",
        left=False,  # a bias makes that library read padding
        attn_layer_period=2,
        attn_layer_offset=0,
        num_experts=1,
        mamba_expand=3,
        mamba_proj_bias=True,
    ),
    case(
        "lfm3",
        "Lfm3",
        num_hidden_layers=3,
        layer_types=["conv", "sliding_attention", "full_attention"],
        head_dim=10,
        sliding_window=4,
        conv_L_cache=4,
        norm_eps=1e-3,
    ),
    case(
        "lfm3-plain",
        "Lfm3",
        layer_types=["full_attention", "conv"],
        head_dim=10,
        use_sandwich_norm=False,
        use_attention_gate=False,
        attention_bias=True,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 900.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 900.0},
        },
    ),
    case("qwen3.5-moe", "Qwen3_5Moe", **EXPERTS, **DELTA),
    case("qwen3.5", "Qwen3_5", attention_bias=True, rms_norm_eps=1e-3, **DELTA),
)
