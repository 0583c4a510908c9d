"""Families with experts in every layer.

OLMoE (Muennighoff et al. 2024) and FlexOlmo (Shi et al. 2025) have the attention of OLMo 2; MiniMax-M2 (2025) has
logistic scores.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.families.common.rope import partial_rope_config, rope_of
from qkv.interop.families.decoders.experts.deepseek import BY_BIAS
from qkv.interop.mapping import gguf
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Model

_OLMO = experts.ExpertKeys(
    {
        "num_experts": "num_experts",
        "top_k": "num_experts_per_tok",
        "hidden": "intermediate_size",
        "normalised": "norm_topk_prob",
    }
)
_MINIMAX = experts.ExpertKeys(
    {"num_experts": "num_local_experts", "top_k": "num_experts_per_tok", "hidden": "intermediate_size"},
    {**BY_BIAS, "normalised": True},
)


def spec_of_olmoe(config: Config, head: Head) -> Model:
    """Build the spec of OLMoE: norms of queries and keys over all heads; ``attention_bias`` adds biases."""
    config.fixed("clip_qkv", None, "clipping of queries, keys and values after their norms")
    return _olmo(config, head)


def _olmo(config: Config, head: Head) -> Model:
    attention = _attention(config, bias=config.flag("attention_bias", False))
    return _OLMO.spec(config, gated.model_of(config, head, [attention] * config.layers("num_hidden_layers")))


def spec_of_flex_olmo(config: Config, head: Head) -> Model:
    """Build the spec of FlexOlmo: like OLMoE, with norms of the branches' outputs instead of their inputs."""
    return gated.with_blocks(_olmo(config, head), order="res_post")


def spec_of_minimax(config: Config, head: Head) -> Model:
    """Build the spec of MiniMax-M2: norms of queries and keys over all heads.

    RoPE rotates the first ``rotary_dim`` features of a head.
    """
    head_dim = config.size("head_dim")
    fraction = config.integer("rotary_dim") / head_dim if config.has("rotary_dim") else 1.0
    attention = _attention(config, relative=rope_of(config, fraction))
    return _MINIMAX.spec(config, gated.model_of(config, head, [attention] * config.layers("num_hidden_layers")))


def _attention(config: Config, **fields: Any) -> Attention:
    return gated.attention_of(config, qk_norm=gated.norm_of(config), qk_norm_over="all_heads", **fields)


def config_of_olmo(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = _OLMO.config(spec, lambda dense: gated.config_of(dense, _bias))
    return None if keys is None else {**keys, "pad_token_id": None}


def _bias(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
    return {"attention_bias": attention.bias}


def config_of_minimax(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    return _MINIMAX.config(spec, lambda dense: partial_rope_config(dense, gated.config_of(dense, rope=False)))


def _family(name: str, model_type: str, stem: str, **fields: Any) -> Family:
    common = {"names": (*experts.names(experts.MLP), *gated.NAMES), **fields}
    return Family(
        name=name,
        model_types=(model_type,),
        architectures={f"{stem}ForCausalLM": language_model(tied=False)},
        prefix="model.",
        ignored=gated.IGNORED,
        ignored_config={**HEAD_KEYS, **experts.IGNORED_CONFIG},
        **common,
    )


OLMOE = _family(
    "OLMoE",
    "olmoe",
    "Olmoe",
    spec=spec_of_olmoe,
    config=config_of_olmo,
    defaults={
        "vocab_size": 50304,
        "hidden_size": 2048,
        "intermediate_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 8,
        "num_experts": 64,
        "norm_topk_prob": False,
    },
    synonyms={"num_local_experts": "num_experts"},
    gguf=gguf.GGUFLayout(
        "OlmoeForCausalLM",
        "olmoe",
        gguf.keys_of_experts("num_experts"),
        {
            "hidden_act": "silu",
            "attention_bias": False,
            "clip_qkv": None,
            "norm_topk_prob": False,
            "num_key_value_heads": lambda values: values["num_attention_heads"],
        },
        experts=True,
    ),
)
FLEX_OLMO = _family(
    "FlexOlmo",
    "flex_olmo",
    "FlexOlmo",
    spec=spec_of_flex_olmo,
    config=config_of_olmo,
    names=(*gated.OUTPUT_NORMS, *experts.names(experts.MLP), *gated.NAMES),
    defaults={
        "vocab_size": 100352,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 4096,
        "rope_theta": 500_000.0,
        "num_experts_per_tok": 5,
        "num_experts": 7,
        "norm_topk_prob": False,
    },
    synonyms={"num_local_experts": "num_experts"},
)
MINIMAX_M2 = _family(
    "MiniMax-M2",
    "minimax_m2",
    "MiniMaxM2",
    spec=spec_of_minimax,
    config=config_of_minimax,
    names=(
        *experts.names("model.layers.{layer}.block_sparse_moe", ("w1", "w3", "w2"), bias="e_score_correction_bias"),
        *gated.NAMES,
    ),
    defaults={
        "vocab_size": 200064,
        "hidden_size": 3072,
        "intermediate_size": 1536,
        "num_hidden_layers": 62,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 196608,
        "rope_theta": 5_000_000.0,
        "num_experts_per_tok": 8,
        "num_local_experts": 256,
    },
    synonyms={"num_experts": "num_local_experts"},
)

register(OLMOE, FLEX_OLMO, MINIMAX_M2)
