"""Cohere 2 with experts (Cohere 2026): its parallel branches, and experts in all but the first layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.heads import HEAD_KEYS, scaled_language_model
from qkv.interop.families.common.rope import FRACTION, rope_of
from qkv.interop.families.decoders.multipliers import cohere
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.parts import NoRelative, Norm, Rope
from qkv.spec.position_wise.experts import MixtureOfExperts
from qkv.system.errors import UserError

_FIRST, _PREFIX = "first_k_dense_replace", "prefix_dense_sliding_window_pattern"
_DENSE, _MEAN = "prefix_dense_intermediate_size", {"scale": 0.5, "shared_scale": 0.5}
_KEYS = {
    "num_experts": "num_experts",
    "top_k": "num_experts_per_tok",
    "hidden": "intermediate_size",
    "num_shared": "num_shared_experts",
}
_PLACES = experts.listed(0, _FIRST)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of "cohere2_moe".

    Layers with full attention have no positions, except dense ones if ``prefix_dense_sliding_window_pattern`` is 1.
    With ``rms_norm_eps``, norms are RMSNorm.
    """
    attention = gated.attention_of(config, bias=config.flag("attention_bias", False), relative=_rope(config))
    sparse, kinds = _PLACES.read(config), gated.kinds_of(config, _kind(config))
    turned = config.integer(_PREFIX, 1) == 1
    layers = [_layer(config, attention, kind, turned and not one) for kind, one in zip(kinds, sparse, strict=True)]
    hidden = _DENSE if config.has(_DENSE) else "intermediate_size"
    model = gated.model_of(config, head, layers, norm=_norm(config), hidden=hidden)
    return _experts(config).spec(config, gated.with_blocks(model, order="parallel"))


def _rope(config: Config) -> Rope:
    """Return the RoPE of ``rope_parameters``: the published config class has ``rope_scaling``, but does not read it."""
    read = ("rope_parameters", "rope_theta", FRACTION)
    keys = {key: config.values[key] for key in read if config.has(key)}
    return rope_of(
        Config({**keys, "max_position_embeddings": config.integer("max_position_embeddings")}, config.source)
    )


def _kind(config: Config) -> Callable[[int], str]:
    """Return the function from a layer's index to its default kind: two patterns, of the dense layers and the rest."""
    first = config.integer(_FIRST, 0)
    dense, rest = config.integer(_PREFIX, 1), config.integer("sliding_window_pattern", 4)
    if min(dense, rest) < 1:
        raise UserError(
            f"{config.source}: {_PREFIX} is {dense} and sliding_window_pattern {rest}, but both should be at least 1"
        )

    def kind(layer: int) -> str:
        slides = (layer + 1) % dense if layer < first else (layer - first + 1) % rest
        return gated.SLIDING if slides else gated.FULL

    return kind


def _layer(config: Config, attention: Attention, kind: str, turned: bool) -> Attention:
    """Return the attention of a layer; ``turned``: it has RoPE without a window, too."""
    relative = attention.relative if turned or kind == gated.SLIDING else NoRelative()
    return attention.changed(mask=gated.mask_of(config, kind), relative=relative)


def _norm(config: Config) -> Norm:
    return gated.norm_of(config) if config.has("rms_norm_eps") else cohere.norm_of(config)


def _experts(config: Config) -> experts.ExpertKeys:
    """Return the experts of a config.

    Weights are the softmax of the chosen scores, or their logistic function. The shared experts' output is added to
    that of the others, or the mean of both is taken.
    """
    logistic = config.word("expert_selection_fn", "softmax", {"softmax": False, "sigmoid": True})
    sums = config.flag("norm_topk_prob", True) or not logistic
    mean = config.word("shared_expert_combination_strategy", "average", {"average": True, "sum": False})
    fixed = {"router": "sigmoid" if logistic else "softmax", "normalised": sums}
    halves = _MEAN if mean and config.integer("num_shared_experts", 0) else {}
    return experts.ExpertKeys(_KEYS, {**fixed, **halves}, _PLACES)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    part = next((b.branches[1] for b in spec.layers if isinstance(b.branches[-1], MixtureOfExperts)), None)
    keys = experts.ExpertKeys(_KEYS, places=_PLACES).config(gated.with_rope(spec)[0], _dense)
    if keys is None or not isinstance(part, MixtureOfExperts):
        return None
    masks = gated.masks_config(spec)
    turned = [mixer for block in spec.layers for mixer in block.branches[:1] if _turned_everywhere(mixer)]
    return {
        **keys,
        "sliding_window": masks["sliding_window"] or spec.context_length,
        "layer_types": masks["layer_types"],
        _PREFIX: 1 if turned else 2,
        "expert_selection_fn": part.router,
        "norm_topk_prob": part.normalises,
        "shared_expert_combination_strategy": "sum" if part.shared_scale == 1 else "average",
    }


def _turned_everywhere(mixer: object) -> bool:
    """Return True if ``mixer`` has RoPE without a window."""
    if not isinstance(mixer, Attention) or gated.window_of(mixer):
        return False
    return not isinstance(mixer.relative, NoRelative)


def _dense(spec: Model) -> dict[str, Any] | None:
    def keys(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
        return {"attention_bias": attention.bias, _DENSE: feed_forward.hidden_at(spec.width)}

    return gated.config_of(spec, keys)


COHERE2_MOE = Family(
    name="Cohere 2 with experts",
    model_types=("cohere2_moe",),
    architectures={"Cohere2MoeForCausalLM": scaled_language_model(True, "logit_scale", 0.0625)},
    spec=spec,
    config=config,
    names=(*experts.names(experts.MLP), *cohere.NAMES),
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={
        **HEAD_KEYS,
        **experts.IGNORED_CONFIG,
        "rope_scaling": "not read by the published code, which reads rope_parameters",
    },
    synonyms={"num_local_experts": "num_experts"},
    defaults={
        "vocab_size": 256000,
        "hidden_size": 8192,
        "intermediate_size": 22528,
        "num_hidden_layers": 40,
        "num_attention_heads": 64,
        "head_dim": 128,
        "max_position_embeddings": 8192,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_shared_experts": 0,
        "sliding_window": 4096,
    },
)

register(COHERE2_MOE)
