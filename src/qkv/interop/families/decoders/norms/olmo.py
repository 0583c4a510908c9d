"""OLMo (Groeneveld et al. 2024), OLMo 2 (2025) and OLMo 3 (2025), by the Allen Institute for AI.

OLMo: Llama's blocks with layer norms without weights, and clipped queries, keys and values. OLMo 2: norms of the
branches' outputs, and of queries and keys over all heads. OLMo 3: in addition, a sliding window in three of four
layers.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.common.rope import layer_ropes, layer_tables
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.parts import LayerNorm
from qkv.system.errors import UserError

_BASE = 500_000.0


def spec_of_olmo(config: Config, head: Head) -> Model:
    """Build the spec of OLMo: ``clip_qkv`` clips queries, keys and values; ``attention_bias`` adds biases."""
    clip = config.number("clip_qkv") if config.has("clip_qkv") else None
    attention = gated.attention_of(config, bias=config.flag("attention_bias", False), clip=clip)
    norm = LayerNorm(weight=False, bias=False)
    return gated.model_of(config, head, [attention] * config.layers("num_hidden_layers"), norm=norm)


def spec_of_olmo2(config: Config, head: Head) -> Model:
    """Build the spec of OLMo 2: ``attention_bias`` adds biases to all linear layers of attention."""
    return _with_output_norms(config, head, [_attention(config)] * config.layers("num_hidden_layers"))


def spec_of_olmo3(config: Config, head: Head) -> Model:
    """Build the spec of OLMo 3: every fourth layer has full attention, unless ``layer_types`` is set.

    Layers with full attention and with a window may have different settings of RoPE.
    """
    base, kinds = config.number("rope_theta", _BASE), gated.kinds_of(config, _kind)
    tables = config.table("rope_parameters").values
    if base != _BASE and gated.SLIDING in kinds and gated.SLIDING not in tables:
        raise UserError(
            f"{config.source}: rope_theta is {base:g}, which libraries read differently for layers with a sliding "
            "window; set rope_parameters, with a table for each kind of layer"
        )
    config.nulls.discard("rope_parameters")  # null means the default, as in the published config class
    ropes = layer_ropes(config, {gated.FULL: base, gated.SLIDING: base}, scaled=gated.FULL)
    attention = _attention(config, relative=ropes[gated.FULL])
    layers = [attention.changed(mask=gated.mask_of(config, kind), relative=ropes[kind]) for kind in kinds]
    return _with_output_norms(config, head, layers)


def _kind(layer: int) -> str:
    return gated.SLIDING if (layer + 1) % 4 else gated.FULL


def _attention(config: Config, **fields: Any) -> Attention:
    norm, bias = gated.norm_of(config), config.flag("attention_bias", False)
    return gated.attention_of(config, bias=bias, qk_norm=norm, qk_norm_over="all_heads", **fields)


def _with_output_norms(config: Config, head: Head, attentions: list[Attention]) -> Model:
    return gated.with_blocks(gated.model_of(config, head, attentions), order="res_post")


def config_of_olmo(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not OLMo's. Callers read them back to verify."""
    keys = gated.config_of(
        spec,
        lambda attention, feed_forward: {"attention_bias": attention.bias, "clip_qkv": attention.clip},
    )
    if keys is not None:
        keys.pop("layer_norm_eps", None)  # fixed by the family
    return keys


def config_of_olmo2(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not OLMo 2's. Callers read them back to verify."""
    return gated.config_of(spec, _bias)


def _bias(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
    return {"attention_bias": attention.bias}


def config_of_olmo3(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not OLMo 3's. Callers read them back to verify."""
    keys, masks = gated.config_of(spec, _bias, rope=False), gated.masks_config(spec)
    if keys is None:
        return None
    tables = layer_tables(spec, masks["layer_types"], dict.fromkeys((gated.FULL, gated.SLIDING), _BASE))
    if tables is None:
        return None
    window = masks["sliding_window"] or spec.context_length  # transformers requires a window, even if no layer has one
    return {**keys, "rope_parameters": tables, "layer_types": masks["layer_types"], "sliding_window": window}


_SIZES = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}


def _family(name: str, model_type: str, stem: str, **fields: Any) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        architectures={
            f"{stem}ForCausalLM": language_model(tied=False),
            **of_decoder(stem, tags=None, question_answering=False),
        },
        prefix="model.",
        ignored=gated.IGNORED,
        ignored_config=HEAD_KEYS,
        base="Llama",
        **fields,
    )


_OUTPUTS = {"names": (*gated.OUTPUT_NORMS, *gated.NAMES), "defaults": {**_SIZES, "rms_norm_eps": 1e-5}}
OLMO = _family("OLMo", "olmo", "Olmo", spec=spec_of_olmo, config=config_of_olmo, names=gated.NAMES, defaults=_SIZES)
OLMO2 = _family("OLMo 2", "olmo2", "Olmo2", spec=spec_of_olmo2, config=config_of_olmo2, **_OUTPUTS)
OLMO3 = _family(
    "OLMo 3",
    "olmo3",
    "Olmo3",
    spec=spec_of_olmo3,
    config=config_of_olmo3,
    names=_OUTPUTS["names"],
    defaults={**_OUTPUTS["defaults"], "sliding_window": 4096},
)

register(OLMO, OLMO2, OLMO3)
