"""Families with experts in which some layers have a sliding window, and layers differ in RoPE.

AFMoE (Arcee AI 2025) has gated attention and norms around each branch, Flint (Recursive 2026) a learned logit per head
in the softmax; in both, layers with full attention have no positions. Mellum (JetBrains 2026) has a RoPE per kind of
layer.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.families.common.rope import layer_ropes, layer_tables, rope_of
from qkv.interop.families.decoders.experts.deepseek import BY_BIAS
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Model, Text
from qkv.spec.parts import FeatureGate, NoRelative
from qkv.system.errors import UserError

_CHOSEN = {"num_experts": "num_experts", "top_k": "num_experts_per_tok", "hidden": "moe_intermediate_size"}
_AFMOE = experts.ExpertKeys(
    {**_CHOSEN, "num_shared": "num_shared_experts", "scale": "route_scale"},
    {**BY_BIAS, "normalised": True},
    experts.after_first("num_dense_layers"),
)
_FLINT = experts.ExpertKeys(
    {**_CHOSEN, "normalised": "norm_topk_prob", "shared_hidden": "shared_expert_intermediate_size"},
    {"router": "sigmoid", "num_shared": 1},
    experts.BY_STEP,
)
_MELLUM = experts.ExpertKeys({**_CHOSEN, "normalised": "norm_topk_prob"}, places=experts.listed(0))
_BASES = {gated.FULL: 500_000.0, gated.SLIDING: 10_000.0}


def spec_of_afmoe(config: Config, head: Head) -> Model:
    """Build the spec of AFMoE.

    Every ``global_attn_every_n_layers``-th layer has full attention, unless ``layer_types`` is set. ``mup_enabled``
    multiplies embeddings by the square root of the width.
    """
    step = config.integer("global_attn_every_n_layers", 4)
    if step < 1:
        raise UserError(f"{config.source}: global_attn_every_n_layers is {step}, but it should be at least 1")
    config.fixed("attention_bias", False, "biases of attention's linear maps")
    kinds = gated.kinds_of(config, lambda i: gated.SLIDING if (i + 1) % step else gated.FULL)
    layers = _turned_in_windows(config, kinds, qk_norm=gated.norm_of(config), output_gate=FeatureGate())
    model = gated.with_blocks(gated.model_of(config, head, layers), order="sandwich")
    if config.flag("mup_enabled", False):
        model = model.changed(frontend=model.frontend.changed(multiplier=model.width**0.5))
    return _AFMOE.spec(config, model)


def spec_of_flint(config: Config, head: Head) -> Model:
    """Build the spec of Flint.

    Layers 0, 1, 5, 9, … and the last one have full attention, unless ``layer_types`` is set. Layers have experts as in
    Qwen2-MoE, by default all but the first two.
    """
    config.nulls.discard("mlp_only_layers")  # null means the default, as in the published config class
    last, bias = config.layers("num_hidden_layers") - 1, config.flag("attention_bias", False)
    kinds = gated.kinds_of(config, lambda i: gated.FULL if i < 2 or i % 4 == 1 or i == last else gated.SLIDING)
    layers = _turned_in_windows(config, kinds, bias=bias, qk_norm=gated.norm_of(config), learned_sink=True)
    return _FLINT.spec(config, gated.model_of(config, head, layers))


def spec_of_mellum(config: Config, head: Head) -> Model:
    """Build the spec of Mellum: all layers have full attention, unless ``layer_types`` is set."""
    config.nulls.discard("rope_parameters")  # null means the default, as in the published config class
    ropes = layer_ropes(config, _BASES)
    attention = gated.attention_of(
        config,
        bias=config.flag("attention_bias", False),
        qk_norm=gated.norm_of(config),
        relative=ropes[gated.FULL],
    )
    kinds = gated.kinds_of(config, lambda i: gated.FULL)
    layers = [attention.changed(mask=gated.mask_of(config, kind), relative=ropes[kind]) for kind in kinds]
    return _MELLUM.spec(config, gated.model_of(config, head, layers))


def _turned_in_windows(config: Config, kinds: list[str], **fields: Any) -> list[Attention]:
    """Return the attention of each layer, with RoPE only where there is a window."""
    attention = gated.attention_of(config, relative=rope_of(config), **fields)
    full = attention.changed(relative=NoRelative())
    return [attention.changed(mask=gated.mask_of(config, kind)) if kind == gated.SLIDING else full for kind in kinds]


def config_of_afmoe(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not AFMoE's. Callers read them back to verify."""
    keys = _AFMOE.config(gated.with_rope(spec)[0], gated.config_of)
    if keys is None or not isinstance(spec.frontend, Text):
        return None
    return {**keys, **_windows(spec), "mup_enabled": spec.frontend.multiplier != 1}


def config_of_flint(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Flint's. Callers read them back to verify."""
    keys = _FLINT.config(gated.with_rope(spec)[0], lambda dense: gated.config_of(dense, _bias))
    return None if keys is None else {**keys, **_windows(spec)}


def config_of_mellum(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Mellum's. Callers read them back to verify."""
    keys, windows = _MELLUM.config(spec, lambda dense: gated.config_of(dense, _bias, rope=False)), _windows(spec)
    tables = layer_tables(spec, windows["layer_types"], _BASES)
    return None if keys is None or tables is None else {**keys, **windows, "rope_parameters": tables}


def _bias(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
    return {"attention_bias": attention.bias}


def _windows(spec: Model) -> dict[str, Any]:
    masks = gated.masks_config(spec)
    window = masks["sliding_window"] or spec.context_length  # transformers requires a window, even if no layer has one
    return {"layer_types": masks["layer_types"], "sliding_window": window}


_OURS, _LAYER = "blocks.{layer}.branches.", "model.layers.{layer}."


def _family(
    name: str, model_type: str, stem: str, ignored_config: Reasons = MappingProxyType({}), **fields: Any
) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        architectures={f"{stem}ForCausalLM": language_model(tied=False)},
        prefix="model.",
        ignored={**gated.IGNORED, "mtp.*": "part of a multi-token prediction head, which is not loaded"},
        ignored_config={**HEAD_KEYS, **experts.IGNORED_CONFIG, **ignored_config},
        **fields,
    )


AFMOE = _family(
    "AFMoE",
    "afmoe",
    "Afmoe",
    spec=spec_of_afmoe,
    config=config_of_afmoe,
    names=(
        NameRule(f"{_OURS}0.norm_after.weight", f"{_LAYER}post_attention_layernorm.weight"),
        NameRule(f"{_OURS}1.norm.weight", f"{_LAYER}pre_mlp_layernorm.weight"),
        NameRule(f"{_OURS}1.norm_after.weight", f"{_LAYER}post_mlp_layernorm.weight"),
        NameRule(f"{_OURS}0.body.output_gate.map.weight", f"{_LAYER}self_attn.gate_proj.weight"),
        *experts.names(experts.MLP, router="router.gate", bias="expert_bias"),
        *gated.NAMES,
    ),
    synonyms={"num_local_experts": "num_experts"},
    defaults={
        "vocab_size": 200192,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 32,
        "num_dense_layers": 1,
        "num_attention_heads": 16,
        "head_dim": 128,
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-5,
        "num_experts": 64,
        "num_experts_per_tok": 6,
        "num_shared_experts": 2,
        "sliding_window": 1024,
    },
)
FLINT = _family(
    "Flint",
    "flint",
    "Flint",
    spec=spec_of_flint,
    config=config_of_flint,
    names=(
        NameRule(f"{_OURS}0.body.sink", f"{_LAYER}self_attn.softmax_offset"),
        *experts.names(experts.MLP, shared="shared_expert"),
        *gated.NAMES,
    ),
    synonyms={"num_local_experts": "num_experts"},
    defaults={
        "vocab_size": 150144,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 49,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "sliding_window": 513,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 1024,
        "num_experts_per_tok": 6,
        "num_experts": 256,
        "norm_topk_prob": True,
        "mlp_only_layers": [0, 1],
    },
)
MELLUM = _family(
    "Mellum",
    "mellum",
    "Mellum",
    spec=spec_of_mellum,
    config=config_of_mellum,
    names=(*experts.names(experts.MLP), *gated.NAMES),
    ignored_config=dict.fromkeys(
        ("mtp_layer_types", "mtp_mlp_layer_types"), "layers of multi-token prediction heads, which are not loaded"
    ),
    synonyms={"num_local_experts": "num_experts"},
    defaults={
        "vocab_size": 98304,
        "hidden_size": 2304,
        "intermediate_size": 7168,
        "num_hidden_layers": 28,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "sliding_window": 1024,
        "num_experts_per_tok": 8,
        "num_experts": 64,
        "moe_intermediate_size": 896,
        "norm_topk_prob": True,
    },
)

register(AFMOE, FLINT, MELLUM)
