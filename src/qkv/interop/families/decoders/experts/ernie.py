"""ERNIE 4.5 with experts (Baidu 2025): Llama's attention, with adjacent RoPE pairs in the files.

A range of layers has experts, which are chosen by a softmax and a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import Broadcast
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.position_wise.experts import BalanceBias
from qkv.system.errors import UserError


def _read(config: Config) -> list[bool]:
    layers, step = config.layers("num_hidden_layers"), config.integer("moe_layer_interval", 1)
    first, last = config.integer("moe_layer_start_index", 1), config.integer("moe_layer_end_index", -1)
    if step < 1:
        raise UserError(f"{config.source}: moe_layer_interval is {step}, but it should be at least 1")
    last = layers - 1 if last == -1 else last
    return [first <= layer <= last and (layer + 1) % step == 0 for layer in range(layers)]


def _written(sparse: Sequence[bool]) -> dict[str, Any]:
    places = [layer for layer, one in enumerate(sparse) if one]
    step = places[1] - places[0] if len(places) > 1 else 1
    return {
        "moe_layer_interval": step,
        "moe_layer_start_index": places[0],
        "moe_layer_end_index": places[-1],
    }


_KEYS = experts.ExpertKeys(
    {
        "num_experts": "moe_num_experts",
        "top_k": "moe_k",
        "hidden": "moe_intermediate_size",
        "num_shared": "moe_num_shared_experts",
    },
    {"normalised": True, "balance": BalanceBias()},
    experts.SparseLayers(_read, _written),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of ERNIE 4.5.

    Layer i, counted from 0, has experts if it lies between ``moe_layer_start_index`` and ``moe_layer_end_index``,
    and ``moe_layer_interval`` divides i + 1.
    """
    config.fixed("use_bias", False, "biases of linear layers, except in experts")
    config.fixed("moe_norm_min", 1e-12, "the lower limit of the sum that the weights of experts are divided by")
    attention = gated.attention_of(config)
    return _KEYS.spec(config, gated.model_of(config, head, [attention] * config.layers("num_hidden_layers")))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    return _KEYS.config(spec, gated.config_of)


ERNIE_MOE = Family(
    name="ERNIE 4.5 MoE",
    model_types=("ernie4_5_moe",),
    architectures={"Ernie4_5_MoeForCausalLM": language_model(tied=True)},
    spec=spec,
    config=config,
    names=(
        gated.INTERLEAVED,
        NameRule(experts.OURS + "balance.bias", experts.MLP + ".moe_statics.e_score_correction_bias", Broadcast()),
        *experts.names(experts.MLP),
        *gated.NAMES,
    ),
    prefix="model.",
    ignored={**gated.IGNORED, "*mtp*": "part of a multi-token prediction head, which is not loaded"},
    ignored_config={**HEAD_KEYS, **experts.IGNORED_CONFIG},
    defaults={
        "vocab_size": 103424,
        "hidden_size": 2560,
        "intermediate_size": 12288,
        "num_hidden_layers": 28,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
    },
    synonyms={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
)

register(ERNIE_MOE)
