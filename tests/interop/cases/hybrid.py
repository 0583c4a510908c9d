"""Decoders whose layers have mixers of different kinds: short convolutions, the delta rule, state spaces, attention."""

from __future__ import annotations

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


CONFIGS = {"Qwen3_5": "Qwen3_5Text", "Qwen3_5Moe": "Qwen3_5MoeText"}
JOINED = {"NemotronH": stacked, "GraniteMoeHybrid": named}


def case(name: str, stem: str, cached: bool = True, **changed: Any) -> Case:
    """A case of the language model of ``stem``; ``cached``: see ``Case``."""
    given = {**SIZES, "hidden_size": 24, "pad_token_id": None, **changed}
    config = getattr(hf, f"{CONFIGS.get(stem, stem)}Config")(**given)
    return Case(
        name, getattr(hf, f"{stem}ForCausalLM"), config, steps=16, cached=cached, joined=JOINED.get(stem, joined)
    )


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
    case("qwen3.5-moe", "Qwen3_5Moe", **EXPERTS, **DELTA),
    case("qwen3.5", "Qwen3_5", attention_bias=True, rms_norm_eps=1e-3, **DELTA),
)
