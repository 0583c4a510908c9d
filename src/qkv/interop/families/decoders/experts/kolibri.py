"""Kolibri (Aleph Alpha 2026): the attention of EXAONE 4, norms around each branch, and experts in every layer.

A bias is added to the logits of the router in the choice of experts.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.families.decoders.experts.deepseek import BY_BIAS
from qkv.interop.families.decoders.norms.exaone import attentions_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model

_KEYS = experts.ExpertKeys(
    {
        "num_experts": "num_experts",
        "top_k": "num_experts_per_tok",
        "hidden": "moe_intermediate_size",
        "shared_hidden": "shared_expert_intermediate_size",
        "normalised": "norm_topk_prob",
    },
    {**BY_BIAS, "choice": "logits", "num_shared": 1},
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Kolibri: every fifth layer has full attention, unless ``layer_types`` is set."""
    model = gated.model_of(config, head, attentions_of(config, 5), hidden="moe_intermediate_size")
    return _KEYS.spec(config, gated.with_blocks(model, order="sandwich"))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    alike, turned = gated.with_rope(spec)
    keys, masks = _KEYS.config(alike, gated.config_of), gated.masks_config(spec)
    if keys is None:
        return None
    window = masks["sliding_window"] if all(turned) else masks["sliding_window"] or spec.context_length
    written = {key: value for key, value in keys.items() if key != "intermediate_size"}
    return {**written, "sliding_window": window, "layer_types": masks["layer_types"]}


_OURS, _LAYER = "blocks.{layer}.branches.", "model.layers.{layer}."
KOLIBRI = Family(
    name="Kolibri",
    model_types=("kolibri1",),
    architectures={"Kolibri1ForCausalLM": language_model(tied=False)},
    spec=spec,
    config=config,
    names=(
        NameRule(f"{_OURS}0.norm_after.weight", f"{_LAYER}post_attn_norm.weight"),
        NameRule(f"{_OURS}1.norm_after.weight", f"{_LAYER}post_ffn_norm.weight"),
        NameRule(f"{experts.OURS}balance.bias", f"{_LAYER}moe.router.expert_bias"),
        *experts.names(experts.MLP),
        *gated.NAMES,
    ),
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={**HEAD_KEYS, **experts.IGNORED_CONFIG},
    synonyms={"num_local_experts": "num_experts"},
    defaults={
        "vocab_size": 128000,
        "hidden_size": 2560,
        "num_hidden_layers": 50,
        "num_attention_heads": 48,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "sliding_window": 513,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 6,
        "num_experts": 384,
        "norm_topk_prob": False,
    },
)

register(KOLIBRI)
