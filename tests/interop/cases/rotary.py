"""Decoders of Llama's structure: adjacent RoPE pairs, parts of heads, layers without RoPE, windows, experts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
import transformers as hf
from tests.interop.cases.case import Case
from tests.interop.cases.llama import SIZES
from torch import Tensor

MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 900.0, "factor": 3.0}
SPECIALS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
MARKS = {**SPECIALS, "cls_token_id": 1, "sep_token_id": 2}
GROUPED: dict[str, Any] = {"head_dim": "absent", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}


EXPERT = re.compile(r"(.*)\.experts\.(\d+)\.(\w+)\.weight")
PARTS = {"w1": "gate", "gate_proj": "gate", "w3": "up", "up_proj": "up", "w2": "down", "down_proj": "down"}


def joined(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of experts, as that library holds their weights: all gates and ups in one parameter, all downs in one.

    An expert that no position chose has none, which counts as 0.
    """
    names = {name.replace("block_sparse_moe", "mlp"): tensor for name, tensor in tensors.items()}
    single = {name: found for name in names if (found := EXPERT.fullmatch(name))}
    out = {name: tensor for name, tensor in names.items() if name not in single}
    for prefix in {found[1] for found in single.values()}:
        parts = {(PARTS[m[3]], int(m[2])): names[name] for name, m in single.items() if m[1] == prefix}
        count = 1 + max(index for _, index in parts)

        def stacked(part: str, parts: Any = parts, count: int = count) -> Tensor:
            some = next(tensor for (name, _), tensor in parts.items() if name == part)
            return torch.stack([parts.get((part, i), torch.zeros_like(some)) for i in range(count)])

        out[f"{prefix}.experts.gate_up_proj"] = torch.cat((stacked("gate"), stacked("up")), 1)
        out[f"{prefix}.experts.down_proj"] = stacked("down")
    return out


def case(name: str, stem: str, config: str = "", **changed: Any) -> Case:
    """A case of the language model of ``stem``, whose config class may have another stem."""
    given = {**SIZES, "head_dim": 10, "pad_token_id": None, **changed}
    made = getattr(hf, f"{config or stem}Config")(**{key: value for key, value in given.items() if value != "absent"})
    return Case(name, getattr(hf, f"{stem}ForCausalLM"), made, steps=14, joined=joined)


CASES = (
    case("helium", "Helium", attention_bias=True),
    case("ernie", "Ernie4_5", use_bias=True, num_attention_heads=6, num_key_value_heads=2),
    case("seed-oss", "SeedOss", attention_out_bias=True, mlp_bias=True),
    case(
        "cwm",
        "Cwm",
        bos_token_id=1,
        num_hidden_layers=3,
        layer_types=MIXED,
        sliding_window=4,
        rope_parameters={"rope_theta": 900.0},
    ),
    case("ministral", "Ministral", num_hidden_layers=3, layer_types=MIXED, sliding_window=3),
    case("phi3", "Phi3", head_dim="absent", sliding_window=5),
    replace(
        case(
            "phi3-long",
            "Phi3",
            head_dim="absent",
            original_max_position_embeddings=5,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 900.0,
                "short_factor": [1.0, 1.1, 1.3, 2.0, 2.5],
                "long_factor": [1.0, 1.5, 3.0, 7.0, 9.0],
            },
        ),
        lengths=(9, 6, 7),  # all long: that library takes the longest row of a batch for all
        cached=False,
    ),
    replace(
        case("llama-dynamic", "Llama", max_position_embeddings=5, rope_parameters=DYNAMIC),
        lengths=(9,),  # that library keeps the frequencies of the longest row so far
        cached=False,
        steps=1,
    ),
    case("glm", "Glm", num_key_value_heads=3, head_dim=12),
    case("glm4", "Glm4", attention_bias=False, head_dim=8),
    case("arcee", "Arcee", mlp_bias=True),
    case("jais2", "Jais2", layer_norm_eps=1e-3),
    case("smollm3", "SmolLM3", head_dim="absent", num_hidden_layers=3, no_rope_layers=[1, 0, 1]),
    case("stablelm", "StableLm", head_dim="absent", hidden_size=48, num_attention_heads=6, num_key_value_heads=2),
    case(
        "stablelm-parallel",
        "StableLm",
        head_dim="absent",
        hidden_size=48,
        use_parallel_residual=True,
        use_qkv_bias=True,
    ),
    case("starcoder2", "Starcoder2", head_dim="absent", sliding_window=4),
    case("starcoder2-no-bias", "Starcoder2", head_dim="absent", use_bias=False, norm_epsilon=1e-3),
    case("olmo", "Olmo", head_dim="absent", clip_qkv=0.7),
    case("olmo2", "Olmo2", **GROUPED, attention_bias=True),
    case(
        "olmo3",
        "Olmo3",
        head_dim="absent",
        num_hidden_layers=3,
        layer_types=MIXED,
        sliding_window=4,
        rope_parameters={
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 900.0,
                "factor": 2.0,
                "original_max_position_embeddings": 8,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 900.0},
        },
    ),
    case("exaone4", "Exaone4", num_hidden_layers=3, layer_types=MIXED, sliding_window=4),
    case("exaone4-full", "Exaone4", sliding_window=None, layer_types=["full_attention"] * 2),
    case(
        "granite",
        "Granite",
        head_dim="absent",
        embedding_multiplier=12.0,
        attention_multiplier=0.3,
        residual_multiplier=0.22,
        logits_scaling=8.0,
        mlp_bias=True,
    ),
    case("cohere", "Cohere", **GROUPED, use_qk_norm=True),
    case("cohere2", "Cohere2", head_dim="absent", num_hidden_layers=3, layer_types=MIXED, sliding_window=4),
    case(
        "hunyuan",
        "HunYuanDenseV1",
        attention_bias=True,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 900.0, "alpha": 50.0, "factor": 1.0},
    ),
    case("nemotron", "Nemotron", head_dim=12, norm_eps=1e-3, mlp_bias=True),
    case("nanochat", "NanoChat", **GROUPED),
    case(
        "granite-swa",
        "GraniteSWA",
        **GROUPED,
        num_hidden_layers=3,
        layer_types=MIXED,
        layer_rope_theta=[900.0, 0, 7e4],
        sliding_window=4,
        attention_multiplier=0.4,
        embedding_multiplier=3.0,
    ),
    case("hyperclovax", "HyperCLOVAX", attention_multiplier=0.2, logits_scaling=0.3, residual_multiplier=0.7),
    case(
        "persimmon", "Persimmon", head_dim="absent", hidden_size=32, num_attention_heads=4, num_key_value_heads="absent"
    ),
    case("apertus", "Apertus", head_dim=12, attention_bias=True, rope_parameters={"rope_theta": 900.0}),
    case(
        "ministral3",
        "Ministral3",
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 900.0,
            "factor": 4.0,
            "original_max_position_embeddings": 3,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.4,
        },
    ),
    case("internlm3", "Llama", "InternLM3", qkv_bias=True, bias=True),
    case("iquest", "Llama", "IQuestCoder"),
    case("bitnet", "BitNet", "BitNet", head_dim="absent", attention_bias=True, rms_norm_eps=1e-3),
    case(
        "compass",
        "CohereCompass",
        "CohereCompassText",
        num_hidden_layers=3,
        layer_types=MIXED,
        sliding_window=4,
        logit_scale=0.3,
        attention_bias=True,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 900.0},
            "full_attention": None,
        },
    ),
    case("diffllama", "DiffLlama", **GROUPED, num_hidden_layers=3, attention_bias=True, rms_norm_eps=1e-3),
    case("emu3", "Emu3", "Emu3Text", head_dim="absent", attention_dropout=0.2, **SPECIALS),
    case(
        "modernbert-decoder",
        "ModernBertDecoder",
        head_dim="absent",
        num_key_value_heads="absent",
        num_hidden_layers=4,
        local_attention=8,
        **MARKS,
        norm_bias=True,
        mlp_bias=True,
        classifier_bias=True,
    ),
    case(
        "modernbert-decoder-plain",
        "ModernBertDecoder",
        head_dim="absent",
        num_key_value_heads="absent",
        layer_types=["sliding_attention", "full_attention"],
        **MARKS,
        local_attention=11,
        attention_bias=True,
        decoder_bias=False,
        tie_word_embeddings=False,
    ),
)
