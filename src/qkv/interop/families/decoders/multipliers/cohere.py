"""Command R (Cohere 2024), Command R+ and Command R7B: parallel attention and feed-forward, constant factor of the
logits.

Both branches share one layer norm without bias. RoPE pairs are adjacent in the files. Command R+ has norms of queries
and keys, with separate weights per head. In Command R7B ("cohere2"), layers with a sliding window have RoPE, and layers
with full attention have no positions.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, scaled_language_model
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import ADJACENT_FEATURES
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.parts import LayerNorm, NoNorm, NoRelative
from qkv.system.errors import UserError

_LAYER = "model.layers.{layer}."
NAMES = (
    gated.INTERLEAVED,
    NameRule("blocks.{layer}.norm.*", f"{_LAYER}input_layernorm.*"),
    NameRule("blocks.{layer}.branches.0.body.query_norm.weight", f"{_LAYER}self_attn.q_norm.weight", ADJACENT_FEATURES),
    NameRule("blocks.{layer}.branches.0.body.key_norm.weight", f"{_LAYER}self_attn.k_norm.weight", ADJACENT_FEATURES),
    *gated.NAMES,
)


def spec_of_cohere(config: Config, head: Head) -> Model:
    """Build the spec of "cohere": ``use_qk_norm`` adds norms of queries and keys, ``attention_bias`` adds biases."""
    norms = config.flag("use_qk_norm", False)
    attention = gated.attention_of(
        config,
        bias=config.flag("attention_bias", False),
        qk_norm=norm_of(config) if norms else NoNorm(),
        qk_norm_over="each_head" if norms else "head",
    )
    return parallel(config, head, [attention] * config.layers("num_hidden_layers"))


def spec_of_cohere2(config: Config, head: Head) -> Model:
    """Build the spec of "cohere2".

    Unless ``layer_types`` is set, layer i has full attention without positions if ``sliding_window_pattern`` divides i
    + 1.
    """
    pattern = config.integer("sliding_window_pattern", 4)
    if pattern < 1:
        raise UserError(f"{config.source}: sliding_window_pattern is {pattern}, but it should be at least 1")
    attention = gated.attention_of(config, bias=config.flag("attention_bias", False))
    kinds = gated.kinds_of(config, lambda i: gated.SLIDING if (i + 1) % pattern else gated.FULL)
    layer = {kind: attention.changed(mask=gated.mask_of(config, kind)) for kind in set(kinds) - {gated.FULL}}
    layer[gated.FULL] = attention.changed(relative=NoRelative())
    return parallel(config, head, [layer[kind] for kind in kinds])


def norm_of(config: Config) -> LayerNorm:
    """Build the layer norm of a config, which has no bias."""
    return LayerNorm(eps=config.number("layer_norm_eps", 1e-5), bias=False)


def parallel(config: Config, head: Head, attentions: list[Attention]) -> Model:
    """Build the spec of parallel blocks; ``attentions``: attention of each layer."""
    return gated.with_blocks(gated.model_of(config, head, attentions, norm=norm_of(config)), order="parallel")


def _bias(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
    return {"attention_bias": attention.bias}


def config_of_cohere(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Cohere's. Callers read them back to verify."""
    return gated.config_of(
        spec, lambda attention, feed_forward: {**_bias(attention, feed_forward), "use_qk_norm": attention.norms_heads}
    )


def config_of_cohere2(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys, masks = gated.config_of(gated.with_rope(spec)[0], _bias), gated.masks_config(spec)
    if keys is None:
        return None
    window = masks["sliding_window"] or spec.context_length  # transformers requires a window, even if no layer has one
    return {**keys, "sliding_window": window, "layer_types": masks["layer_types"]}


SIZES = {
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
}


def _family(name: str, model_type: str, stem: str, **fields: Any) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        architectures={f"{stem}ForCausalLM": scaled_language_model(True, "logit_scale", 0.0625)},
        names=NAMES,
        prefix="model.",
        ignored=gated.IGNORED,
        ignored_config=HEAD_KEYS,
        **fields,
    )


COHERE = _family(
    "Cohere",
    "cohere",
    "Cohere",
    spec=spec_of_cohere,
    config=config_of_cohere,
    defaults={**SIZES, "rope_theta": 500_000.0},
)
COHERE2 = _family(
    "Cohere 2",
    "cohere2",
    "Cohere2",
    spec=spec_of_cohere2,
    config=config_of_cohere2,
    defaults={**SIZES, "sliding_window": 4096},
    base="Cohere",
)

register(COHERE, COHERE2)
