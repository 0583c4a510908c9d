"""Bamba (IBM 2024) and the hybrid Granite 4 (IBM 2025): Mamba-2 or attention, each followed by a feed-forward network.

Granite has constant factors, and experts besides a network for all positions; models without experts have only that
network.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, scaled_language_model
from qkv.interop.families.common.hybrid import config_of, first_mixer, kinds_of, of_kinds
from qkv.interop.families.common.multipliers import attention_multiplier, factor_of, temperature_of
from qkv.interop.families.common.rope import FRACTION, rope_config, rope_of
from qkv.interop.families.common.state_space import StateSpaceKeys, mamba2_names, min_step_of, step_limits
from qkv.interop.families.decoders.experts.granite import EXPERT_NAMES
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR
from qkv.interop.mapping.family import Family, Reasons
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, Branch, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.mixers.matrix_state import Mamba2
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import Add, NoRelative, Rope
from qkv.spec.position_wise.experts import MixtureOfExperts

KEYS = StateSpaceKeys()
KINDS = {"attention": "full_attention", "mamba2": "linear_attention"}
"""Kinds of mixers -> kinds of layers in configs."""


def mixers_of(config: Config, attention: Attention, kinds: list[str]) -> list[Branch]:
    """Return the mixer of each layer by its kind."""
    parts: dict[str, Branch] = {
        "full_attention": attention,
        "linear_attention": KEYS.read(config, min_step=min_step_of(config)),
    }
    return of_kinds(config, kinds, parts)


def spec_of_bamba(config: Config, head: Head) -> Model:
    """Build the spec of Bamba: layers in ``attn_layer_indices`` have attention, with RoPE on half of each head."""
    attention = gated.attention_of(config, bias=config.flag("attention_bias", False), relative=rope_of(config, 0.5))
    attends = config.items("attn_layer_indices") if config.has("attn_layer_indices") else []
    layers = config.layers("num_hidden_layers")
    kinds = ["full_attention" if i in attends else "linear_attention" for i in range(layers)]
    return gated.model_of(config, head, mixers_of(config, attention, kinds), config.flag("mlp_bias", False))


def spec_of_granite(config: Config, head: Head) -> Model:
    """Build the spec of the hybrid Granite: no positions unless ``position_embedding_type`` is "rope"."""
    placed = config.has("position_embedding_type") and config.word("position_embedding_type") == "rope"
    attention = gated.attention_of(
        config,
        bias=config.flag("attention_bias", False),
        temperature=temperature_of(config, "attention_multiplier"),
        relative=rope_of(config) if placed else NoRelative(),
    )
    kinds = kinds_of(config, ["linear_attention"] * config.layers("num_hidden_layers"))
    model = gated.model_of(config, head, mixers_of(config, attention, kinds))
    text = model.frontend.changed(multiplier=factor_of(config, "embedding_multiplier"))
    residual = Add(factor=factor_of(config, "residual_multiplier"))
    feed_forward = _feed_forward(config, model.blocks[0].branches[1])
    blocks = tuple(
        block.changed(branches=(block.branches[0], feed_forward), residual=residual) for block in model.blocks
    )
    return model.changed(frontend=text, blocks=blocks)


def _feed_forward(config: Config, single: Branch) -> Branch:
    """Return the experts of the hybrid Granite, or without experts the network for all positions."""
    assert isinstance(single, GatedFeedForward)
    shared, experts = config.size("shared_intermediate_size"), config.integer("num_local_experts")
    if not experts:
        return single.changed(hidden=shared)
    return MixtureOfExperts(
        num_experts=experts,
        top_k=config.integer("num_experts_per_tok"),
        hidden=single.hidden,
        activation=single.activation,
        num_shared=1,
        shared_hidden=shared,
        normalised=True,
    )


def config_of_bamba(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Bamba's. Callers read them back to verify."""

    def keys(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
        rope = attention.relative if isinstance(attention.relative, Rope) else Rope()
        turned = {FRACTION: rope.fraction, **(rope_config(rope, partial=True) or {})}
        return {"attention_bias": attention.bias, "mlp_bias": feed_forward.bias, **turned}

    shared = config_of(spec, keys, lambda branch: KINDS.get(branch.kind, ""), rope=False)
    if shared is None:
        return None
    kinds = shared.pop("layer_types")
    attends = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
    return {**shared, "attn_layer_indices": attends, **_state_space(spec)}


def config_of_granite(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if it is not a hybrid Granite. Callers read them back to verify."""
    attention = first_mixer(spec, Attention)
    if not isinstance(spec.frontend, Text) or not isinstance(spec.layers[0].residual, Add) or attention is None:
        return None
    dense = spec.changed(blocks=tuple(map(_dense, spec.layers)), num_layers=None)
    shared = config_of(
        dense,
        lambda attention, feed_forward: {"attention_bias": attention.bias},
        lambda branch: KINDS.get(branch.kind, ""),
    )
    if shared is None:
        return None
    return {
        **shared,
        **_experts(spec.layers[0].branches[1]),
        **_state_space(spec),
        "attention_multiplier": attention_multiplier(attention, spec.width),
        "embedding_multiplier": spec.frontend.multiplier,
        "residual_multiplier": spec.layers[0].residual.factor,
        "position_embedding_type": None if isinstance(attention.relative, NoRelative) else "rope",
    }


def _dense(block: Block) -> Block:
    """Return the block with a single expert instead of all; ``gated.config_of`` writes the keys of that expert."""
    match block.branches:
        case (mixer, MixtureOfExperts() as experts):
            single = GatedFeedForward(hidden=experts.hidden, activation=experts.activation)
            return block.changed(branches=(mixer, single))
        case _:
            return block


def _experts(branch: Branch) -> dict[str, Any]:
    match branch:
        case MixtureOfExperts() as experts:
            return {
                "num_local_experts": experts.num_experts,
                "num_experts_per_tok": experts.top_k,
                "shared_intermediate_size": experts.shared_hidden,
            }
        case GatedFeedForward() as single:
            return {"num_local_experts": 0, "shared_intermediate_size": single.hidden}
        case _:
            return {}


def _state_space(spec: Model) -> dict[str, Any]:
    part = first_mixer(spec, Mamba2)
    return {} if part is None else {**KEYS.write(part, spec.width), "time_step_limit": step_limits(part)}


_OURS, _LAYER = "blocks.{layer}.branches.1.", "model.layers.{layer}."
_FEED_FORWARD = f"{_LAYER}feed_forward."
MAMBA_NAMES = mamba2_names(f"{_LAYER}mamba.")
BAMBA_NAMES = (
    *MAMBA_NAMES,
    NameRule("norm.weight", "model.final_layernorm.weight"),
    NameRule(f"{_OURS}norm.weight", f"{_LAYER}pre_ff_layernorm.weight"),
    NameRule(f"{_OURS}body.gate_up.*", (f"{_FEED_FORWARD}gate_proj.*", f"{_FEED_FORWARD}up_proj.*"), PAIR),
    NameRule(f"{_OURS}body.down.*", f"{_FEED_FORWARD}down_proj.*"),
    *gated.NAMES,
)
GRANITE_NAMES = (
    *MAMBA_NAMES,
    *EXPERT_NAMES,
    NameRule(f"{_OURS}body.gate_up.weight", f"{_LAYER}shared_mlp.input_linear.weight"),
    NameRule(f"{_OURS}body.down.weight", f"{_LAYER}shared_mlp.output_linear.weight"),
    *gated.NAMES,
)
_DEFAULTS = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
IGNORED_CONFIG: Reasons = {
    **HEAD_KEYS,
    **dict.fromkeys(("z_loss_coefficient", "router_aux_loss_coef"), "training"),
    **dict.fromkeys(("output_router_logits", "num_logits_to_keep"), "output format of a call"),
    "mamba_chunk_size": "execution setting",
}
_UNPLACED: Reasons = dict.fromkeys(
    ("rope_parameters", "rope_scaling", "rope_theta", FRACTION), 'read only with position_embedding_type "rope"'
)

BAMBA = Family(
    name="Bamba",
    base="Llama",
    model_types=("bamba",),
    architectures={"BambaForCausalLM": language_model(tied=False)},
    spec=spec_of_bamba,
    config=config_of_bamba,
    names=BAMBA_NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={
        **IGNORED_CONFIG,
        **dict.fromkeys(("layer_types", "layers_block_type"), "given by attn_layer_indices"),
    },
    defaults={
        **_DEFAULTS,
        "vocab_size": 128000,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
    },
)
GRANITE_HYBRID = Family(
    name="Granite 4 (hybrid)",
    base="Llama",
    model_types=("granitemoehybrid",),
    architectures={"GraniteMoeHybridForCausalLM": scaled_language_model(False, "logits_scaling", 1.0, divides=True)},
    spec=spec_of_granite,
    config=config_of_granite,
    names=GRANITE_NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={**IGNORED_CONFIG, **_UNPLACED},
    synonyms={"layers_block_type": "layer_types"},
    defaults={
        **_DEFAULTS,
        "vocab_size": 32000,
        "intermediate_size": 11008,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024,
        "rms_norm_eps": 1e-6,
    },
)

register(BAMBA, GRANITE_HYBRID)
