"""Mixtral (Jiang et al. 2024) and Qwen3-MoE (Yang et al. 2025): Llama's attention and a mixture of experts, whose
scores are a softmax over all experts. Qwen3-MoE has norms of queries and keys.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.activations import INWARD
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.masks import Causal
from qkv.spec.model import Block, Model
from qkv.spec.position_wise.experts import MixtureOfExperts

_OURS = "blocks.{layer}.branches.1.body."


def _names(theirs: str, gate: str, up: str, down: str) -> tuple[NameRule, ...]:
    """Return the table of tensor names; ``theirs``: prefix of the experts; ``gate``, ``up``, ``down``: names in one."""
    expert = f"{theirs}.experts.{{expert}}."
    return (
        NameRule(_OURS + "experts.{expert}.gate_up.weight", (f"{expert}{gate}.weight", f"{expert}{up}.weight"), PAIR),
        NameRule(_OURS + "experts.{expert}.down.weight", f"{expert}{down}.weight"),
        NameRule(_OURS + "router.weight", f"{theirs}.gate.weight"),
        *gated.NAMES,
    )


def spec_of_mixtral(config: Config, head: Head) -> Model:
    """Build the spec of Mixtral: the weights of the chosen experts sum to 1."""
    mask = gated.windowed(config.integer("sliding_window")) if config.has("sliding_window") else Causal()
    attention = gated.attention_of(config, mask=mask)
    model = gated.model_of(config, head, [attention] * config.layers("num_hidden_layers"))
    return _with_experts(config, model, "num_local_experts", "intermediate_size", True)


def spec_of_qwen3_moe(config: Config, head: Head) -> Model:
    """Build the spec of Qwen3-MoE; every layer has experts. ``norm_topk_prob``: their weights sum to 1."""
    config.fixed("decoder_sparse_step", 1, "which layers have experts")
    config.fixed("mlp_only_layers", [], "which layers have experts")
    attention = gated.attention_of(
        config, bias=config.flag("attention_bias", False), qk_norm=gated.norm_of(config), mask=_mask(config)
    )
    model = gated.model_of(config, head, [attention] * config.layers("num_hidden_layers"))
    return _with_experts(config, model, "num_experts", "moe_intermediate_size", config.flag("norm_topk_prob", False))


def _mask(config: Config) -> Any:
    window, slides = config.has("sliding_window"), config.flag("use_sliding_window", False)
    return gated.windowed(config.integer("sliding_window")) if window and slides else Causal()


def _with_experts(config: Config, model: Model, count: str, hidden: str, normalised: bool) -> Model:
    """Return ``model`` with experts in place of each feed-forward; ``count`` and ``hidden``: keys of their sizes."""
    experts = MixtureOfExperts(
        num_experts=config.size(count),
        top_k=config.integer("num_experts_per_tok"),
        hidden=config.size(hidden),
        activation=config.word("hidden_act", "silu", INWARD),
        normalised=normalised,
    )
    blocks = tuple(block.changed(branches=(block.branches[0], experts)) for block in model.blocks)
    return model.changed(blocks=blocks)


def _dense(block: Block) -> Block:
    """Return the block with one expert in place of all, whose keys ``gated.config_of`` writes."""
    match block.branches:
        case (attention, MixtureOfExperts() as experts):
            single = GatedFeedForward(hidden=experts.hidden, activation=experts.activation)
            return block.changed(branches=(attention, single))
        case _:
            return block


def _config(spec: Model, more: gated.LayerKeys) -> tuple[dict[str, Any], MixtureOfExperts] | None:
    """Return (config keys, experts of the first layer); None if the structure of ``spec`` is another one."""
    found = gated.config_of(spec.changed(blocks=tuple(map(_dense, spec.layers))), more)
    match spec.layers[:1]:
        case (Block(branches=(_, MixtureOfExperts() as experts)),) if found is not None:
            return {**found, "num_experts_per_tok": experts.top_k}, experts
        case _:
            return None


def config_of_mixtral(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Mixtral's. Callers read them back."""
    found = _config(spec, lambda attention, feed_forward: {"sliding_window": gated.window_of(attention)})
    return None if found is None else {**found[0], "num_local_experts": found[1].num_experts}


def config_of_qwen3_moe(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Qwen3-MoE's. Callers read them back."""
    found = _config(
        spec,
        lambda attention, feed_forward: {
            "attention_bias": attention.bias,
            "sliding_window": gated.window_of(attention),
            "use_sliding_window": gated.window_of(attention) is not None,
        },
    )
    if found is None:
        return None
    keys, experts = found
    return {
        **keys,
        "moe_intermediate_size": keys["intermediate_size"],
        "num_experts": experts.num_experts,
        "norm_topk_prob": experts.normalises,
    }


def _family(name: str, model_type: str, stem: str, **fields: Any) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        architectures={f"{stem}ForCausalLM": language_model(tied=False), **of_decoder(stem)},
        prefix="model.",
        ignored=gated.IGNORED,
        ignored_config={
            **HEAD_KEYS,
            **dict.fromkeys(("router_aux_loss_coef", "router_jitter_noise"), "training of the router"),
            "output_router_logits": "format of a call's outputs",
            "max_window_layers": "not read by the published code of this family",
        },
        **fields,
    )


MIXTRAL = _family(
    "Mixtral",
    "mixtral",
    "Mixtral",
    spec=spec_of_mixtral,
    config=config_of_mixtral,
    names=_names("model.layers.{layer}.block_sparse_moe", "w1", "w3", "w2"),
    defaults={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
    },
    synonyms={"num_experts": "num_local_experts"},
)
QWEN3_MOE = _family(
    "Qwen3-MoE",
    "qwen3_moe",
    "Qwen3Moe",
    spec=spec_of_qwen3_moe,
    config=config_of_qwen3_moe,
    names=_names("model.layers.{layer}.mlp", "gate_proj", "up_proj", "down_proj"),
    defaults={
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "num_experts": 128,
        "mlp_only_layers": [],
    },
    synonyms={"num_local_experts": "num_experts"},
)

register(MIXTRAL, QWEN3_MOE)
