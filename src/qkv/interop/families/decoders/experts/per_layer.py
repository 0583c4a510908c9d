"""Families with experts in which layers differ in window, RoPE and number of heads.

Laguna (Poolside 2026) has softplus gates on the outputs of attention. In MiMo-V2-Flash (Xiaomi 2025), values have
another width than keys, and the output of attention is multiplied by a fixed factor. Its layers with a window have
twice as many key/value heads, and a learned logit per head takes part in the softmax.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.families.common.rope import FRACTION, layer_ropes, layer_tables
from qkv.interop.families.decoders.experts.deepseek import BY_BIAS, IN_GROUPS
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model
from qkv.spec.parts import FactorGate, FeatureGate, HeadGate, NoOutputGate, OutputGate, Rope
from qkv.system.errors import UserError

_LAGUNA = experts.ExpertKeys(
    {
        "num_experts": "num_experts",
        "top_k": "num_experts_per_tok",
        "hidden": "moe_intermediate_size",
        "shared_hidden": "shared_expert_intermediate_size",
        "scale": "moe_routed_scaling_factor",
    },
    {**BY_BIAS, "normalised": True, "num_shared": 1},
    experts.listed(1),
)
_MIMO = experts.ExpertKeys(
    {field: key for field, key in IN_GROUPS.items() if field != "num_shared"}, BY_BIAS, experts.listed(1)
)
_LAGUNA_BASES = {gated.FULL: 500_000.0, gated.SLIDING: 10_000.0}
_MIMO_BASES = {gated.FULL: 5_000_000.0, gated.SLIDING: 10_000.0}
_PER_LAYER, _SCALE, _MIMO_FRACTION = "num_attention_heads_per_layer", "attention_value_scale", 0.334


def spec_of_laguna(config: Config, head: Head) -> Model:
    """Build the spec of Laguna: all layers have full attention, unless ``layer_types`` is set.

    ``gating``: a gate per head, or per feature of each head.
    """
    config.fixed("attention_bias", False, "biases of attention's linear maps")
    config.fixed("moe_router_logit_softcapping", 0.0, "the bound of the router's scores")
    config.fixed("moe_apply_router_weight_on_input", False, "what the weights of experts multiply")
    config.nulls.discard("rope_parameters")  # null means the default, as in the published config class
    ropes = layer_ropes(config, _LAGUNA_BASES, fraction=1.0)
    attention = gated.attention_of(
        config, qk_norm=gated.norm_of(config), output_gate=_gate(config), relative=ropes[gated.FULL]
    )
    kinds = gated.kinds_of(config, lambda i: gated.FULL)
    layers = [
        attention.changed(num_heads=heads, mask=gated.mask_of(config, kind), relative=ropes[kind])
        for kind, heads in zip(kinds, _heads(config, len(kinds)), strict=True)
    ]
    return _LAGUNA.spec(config, gated.model_of(config, head, layers))


def _heads(config: Config, layers: int) -> list[int]:
    """Return the number of heads of each layer."""
    heads = config.items(_PER_LAYER) or [config.size("num_attention_heads")] * layers
    if len(heads) == layers and all(type(count) is int and count > 0 for count in heads):
        return heads
    raise UserError(
        f"{config.source}: {_PER_LAYER} is {heads}, but it should hold a number for each of {layers} layers"
    )


def _gate(config: Config) -> OutputGate:
    """Build the output gate; ``gating`` is a name, true (a gate per head) or false (a gate per feature)."""
    named = isinstance(config.values.get("gating"), str)
    alone = config.word("gating") == "per-head" if named else config.flag("gating", True)
    return HeadGate(function="softplus") if alone else FeatureGate(function="softplus")


def spec_of_mimo(config: Config, head: Head) -> Model:
    """Build the spec of MiMo-V2-Flash.

    Layers 0, 5, 11, … have full attention, unless ``layer_types`` is set. ``sliding_window_size`` does not count the
    position itself.
    """
    config.nulls.discard("rope_parameters")  # null means the default, as in the published config class
    head_dim = config.size("head_dim")
    ropes = {
        kind: _in_pairs(rope, head_dim)
        for kind, rope in layer_ropes(config, _MIMO_BASES, fraction=_MIMO_FRACTION).items()
    }
    scale = config.optional(_SCALE, 0.707) or 1.0
    attention = gated.attention_of(
        config,
        bias=config.flag("attention_bias", False),
        output_bias=False,
        value_dim=config.size("v_head_dim"),
        output_gate=NoOutputGate() if scale == 1 else FactorGate(factor=scale),
        relative=ropes[gated.FULL],
    )
    kinds = gated.kinds_of(config, lambda i: gated.SLIDING if i and (i + 1) % 6 else gated.FULL)
    window = config.integer("sliding_window_size", config.integer("sliding_window") - 1) + 1
    near = attention.changed(
        mask=gated.windowed(window),
        relative=ropes[gated.SLIDING],
        num_kv_heads=2 * attention.kv_heads,
        learned_sink=True,
    )
    layers = [near if kind == gated.SLIDING else attention for kind in kinds]
    return _MIMO.spec(config, gated.model_of(config, head, layers))


def _in_pairs(rope: Rope, head_dim: int) -> Rope:
    """Return a RoPE of whole pairs that equals ``rope`` in the published code, which rounds a fraction of a head.

    Of an odd number r of features, (r + 1) / 2 pairs are rotated, with the frequencies base^(-2 i / r).
    """
    count = rope.rotated(head_dim)
    if count % 2 == 0 or rope.scaling is not None:
        return rope
    return rope.changed(base=rope.base ** ((count + 1) / count), fraction=(count + 1) / head_dim)


def config_of_laguna(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Laguna's. Callers read them back to verify."""
    first = _attention(spec.layers[0])
    if first is None:
        return None
    alike = _changed(spec, lambda attention: {"num_heads": first.num_heads})
    keys = _with_ropes(spec, _LAGUNA.config(alike, lambda dense: gated.config_of(dense, rope=False)), _LAGUNA_BASES)
    heads = [getattr(block.branches[0], "num_heads", 0) for block in spec.layers]
    gating = "per-head" if isinstance(first.output_gate, HeadGate) else "per-element"
    return None if keys is None else {**keys, _PER_LAYER: heads, "gating": gating}


def config_of_mimo(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    alike = _changed(
        spec,
        lambda attention: {"num_kv_heads": attention.kv_heads // (2 if attention.learned_sink else 1)},
    )

    def keys(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
        gate = attention.output_gate
        return {
            "attention_bias": attention.bias,
            "v_head_dim": attention.dims(spec.width)[1],
            _SCALE: gate.factor if isinstance(gate, FactorGate) else 1.0,
        }

    shared = _MIMO.config(alike, lambda dense: gated.config_of(dense, keys, rope=False))
    return _with_ropes(spec, shared, _MIMO_BASES)


def _attention(block: Block) -> Attention | None:
    mixer = block.branches[0]
    return mixer if isinstance(mixer, Attention) else None


def _changed(spec: Model, fields: Any) -> Model:
    """Return ``spec`` with the attention of each layer changed: ``fields`` returns its new fields."""
    blocks = [
        block
        if (mixer := _attention(block)) is None
        else block.changed(branches=(mixer.changed(**fields(mixer)), *block.branches[1:]))
        for block in spec.layers
    ]
    return spec.changed(blocks=tuple(blocks), num_layers=None)


def _with_ropes(spec: Model, keys: dict[str, Any] | None, bases: dict[str, float]) -> dict[str, Any] | None:
    """Return ``keys`` with those of each layer's window and RoPE; None if configs cannot express them."""
    masks = gated.masks_config(spec)
    tables = layer_tables(spec, masks["layer_types"], bases, partial=True)
    if keys is None or tables is None:
        return None
    window = masks["sliding_window"] or spec.context_length  # transformers requires a window, even if no layer has one
    return {**keys, "rope_parameters": tables, "layer_types": masks["layer_types"], "sliding_window": window}


_OURS, _THEIRS = "blocks.{layer}.branches.0.body.", "model.layers.{layer}.self_attn."


def _tables(bases: dict[str, float], fractions: dict[str, float]) -> dict[str, Any]:
    """Return the default ``rope_parameters`` of a family."""
    return {
        kind: {"rope_type": "default", "rope_theta": base, FRACTION: fractions[kind]} for kind, base in bases.items()
    }


def _family(name: str, model_type: str, stem: str, **fields: Any) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        architectures={f"{stem}ForCausalLM": language_model(tied=False)},
        prefix="model.",
        ignored={**gated.IGNORED, "model.mtp.*": "part of a multi-token prediction head, which is not loaded"},
        ignored_config={**HEAD_KEYS, **experts.IGNORED_CONFIG},
        **fields,
    )


LAGUNA = _family(
    "Laguna",
    "laguna",
    "Laguna",
    spec=spec_of_laguna,
    config=config_of_laguna,
    names=(
        NameRule(f"{_OURS}output_gate.map.weight", f"{_THEIRS}g_proj.weight"),
        *experts.names(experts.MLP, bias="experts.e_score_correction_bias", shared="shared_expert"),
        *gated.NAMES,
    ),
    synonyms={"num_local_experts": "num_experts"},
    defaults={
        "vocab_size": 100352,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 40,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "sliding_window": 512,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "rope_parameters": _tables(_LAGUNA_BASES, {gated.FULL: 0.5, gated.SLIDING: 1.0}),
    },
)
MIMO = _family(
    "MiMo-V2-Flash",
    "mimo_v2_flash",
    "MiMoV2Flash",
    spec=spec_of_mimo,
    config=config_of_mimo,
    names=(
        NameRule(f"{_OURS}sink", f"{_THEIRS}attention_sink_bias"),
        *experts.names(experts.MLP),
        *gated.NAMES,
    ),
    synonyms={"num_local_experts": "n_routed_experts"},
    defaults={
        "vocab_size": 152576,
        "hidden_size": 4096,
        "intermediate_size": 16384,
        "num_hidden_layers": 48,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "sliding_window": 129,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "rope_parameters": _tables(_MIMO_BASES, dict.fromkeys(_MIMO_BASES, _MIMO_FRACTION)),
    },
    typical={"num_attention_heads": 4, "num_key_value_heads": 2},
)

register(LAGUNA, MIMO)
