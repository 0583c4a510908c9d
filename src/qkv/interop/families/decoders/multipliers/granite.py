"""Families with Llama's blocks and constant factors of embeddings, scores, branches and logits.

Granite (IBM 2024), Granite with sliding windows (2025) and HyperCLOVA X (NAVER 2025). "granite_swa" has a learned logit
per head in the softmax, and layers that differ in window and RoPE. HyperCLOVA X may have norms after its branches, too.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, scaled_language_model
from qkv.interop.families.common.multipliers import attention_multiplier, factor_of, temperature_of
from qkv.interop.families.common.rope import rope_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Model, Text
from qkv.spec.parts import Add, NoRelative, Rope
from qkv.system.errors import UserError


def spec_of_granite(config: Config, head: Head) -> Model:
    """Build the spec of Granite: ``attention_multiplier`` is the scale of the scores.

    ``attention_bias`` and ``mlp_bias`` add biases.
    """
    temperature = temperature_of(config, "attention_multiplier")
    return _model(config, head, [_attention(config, temperature=temperature)] * config.layers("num_hidden_layers"))


def spec_of_granite_swa(config: Config, head: Head) -> Model:
    """Build the spec of "granite_swa".

    Layers 0, 4, … have full attention, unless ``layer_types`` is set. ``layer_rope_theta`` is the base of each layer's
    RoPE, or 0 for a layer without RoPE.
    """
    kinds = gated.kinds_of(config, lambda i: gated.SLIDING if i % 4 else gated.FULL)
    rope = rope_of(config)
    bases = config.items("layer_rope_theta") or [rope.base] * len(kinds)
    if len(bases) != len(kinds) or not all(type(base) in (int, float) and (base == 0 or base > 1) for base in bases):
        raise UserError(
            f"{config.source}: layer_rope_theta is {bases}, but it should hold a number above 1, or 0, for each of "
            f"{len(kinds)} layers"
        )
    temperature = temperature_of(config, "attention_multiplier")
    attention = _attention(config, temperature=temperature, relative=rope, learned_sink=True)
    layers = [
        attention.changed(
            mask=gated.mask_of(config, kind), relative=rope.changed(base=float(base)) if base else NoRelative()
        )
        for kind, base in zip(kinds, bases, strict=True)
    ]
    return _model(config, head, layers)


def spec_of_hyperclovax(config: Config, head: Head) -> Model:
    """Build the spec of HyperCLOVA X: ``use_post_norm`` adds norms after the branches.

    Without ``attention_multiplier``, scores are divided by √Dk.
    """
    scaled = config.has("attention_multiplier")
    temperature = temperature_of(config, "attention_multiplier") if scaled else 1.0
    layers = [_attention(config, temperature=temperature)] * config.layers("num_hidden_layers")
    order = "sandwich" if config.flag("use_post_norm", True) else "pre"
    return gated.with_blocks(_model(config, head, layers), order=order)


def _attention(config: Config, **fields: Any) -> Attention:
    return gated.attention_of(config, bias=config.flag("attention_bias", False), **fields)


def _model(config: Config, head: Head, layers: list[Attention]) -> Model:
    model = gated.model_of(config, head, layers, config.flag("mlp_bias", False))
    text = model.frontend.changed(multiplier=factor_of(config, "embedding_multiplier"))
    residual = Add(factor=factor_of(config, "residual_multiplier"))
    return gated.with_blocks(model.changed(frontend=text), residual=residual)


def config_of_granite(spec: Model, rope: bool = True) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify.

    ``rope``: as in ``gated.config_of``.
    """

    def keys(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
        return {
            "attention_bias": attention.bias,
            "mlp_bias": feed_forward.bias,
            "attention_multiplier": attention_multiplier(attention, spec.width),
        }

    shared = gated.config_of(spec, keys, rope)
    match spec.frontend, [block.residual for block in spec.layers[:1]]:
        case Text() as text, [Add() as residual] if shared is not None:
            return {**shared, "embedding_multiplier": text.multiplier, "residual_multiplier": residual.factor}
        case _:
            return None


def config_of_granite_swa(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not "granite_swa"'s."""
    alike, _ = gated.with_rope(spec)
    keys, masks = config_of_granite(alike, rope=False), gated.masks_config(spec)
    relatives = [getattr(block.branches[0], "relative", None) for block in spec.layers]
    bases = [relative.base if isinstance(relative, Rope) else 0 for relative in relatives]
    first = gated.rope_keys(alike)
    if keys is None or first is None:
        return None
    window = masks["sliding_window"] or spec.context_length  # transformers requires a window, even if no layer has one
    return {
        **keys,
        **first,
        "layer_rope_theta": bases,
        "layer_types": masks["layer_types"],
        "sliding_window": window,
    }


def config_of_hyperclovax(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not HyperCLOVA X's."""
    keys = config_of_granite(spec)
    return None if keys is None else {**keys, "use_post_norm": spec.layers[0].order == "sandwich"}


_SIZES = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
_LAYER = "model.layers.{layer}."
SINK_NAMES = (NameRule("blocks.{layer}.branches.0.body.sink", f"{_LAYER}self_attn.sinks"),)
"""Name table of the logits of "granite_swa" in the softmax."""


def _family(name: str, model_type: str, **fields: Any) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        prefix="model.",
        ignored=gated.IGNORED,
        ignored_config=HEAD_KEYS,
        base="Llama",
        **fields,
    )


GRANITE = _family(
    "Granite",
    "granite",
    architectures={"GraniteForCausalLM": scaled_language_model(False, "logits_scaling", 1.0, divides=True)},
    spec=spec_of_granite,
    config=config_of_granite,
    names=gated.NAMES,
    defaults=_SIZES,
)
GRANITE_SWA = _family(
    "Granite with sliding windows",
    "granite_swa",
    architectures={"GraniteSWAForCausalLM": scaled_language_model(True, "logits_scaling", 1.0, divides=True)},
    spec=spec_of_granite_swa,
    config=config_of_granite_swa,
    names=(*SINK_NAMES, *gated.NAMES),
    defaults={
        "vocab_size": 100352,
        "hidden_size": 2560,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "sliding_window": 128,
    },
)
HYPERCLOVAX = _family(
    "HyperCLOVA X",
    "hyperclovax",
    architectures={"HyperCLOVAXForCausalLM": scaled_language_model(False, "logits_scaling", 1.0)},
    spec=spec_of_hyperclovax,
    config=config_of_hyperclovax,
    names=(
        NameRule("blocks.{layer}.branches.0.norm_after.*", f"{_LAYER}post_norm1.*"),
        NameRule("blocks.{layer}.branches.1.norm_after.*", f"{_LAYER}post_norm2.*"),
        *gated.NAMES,
    ),
    defaults=_SIZES,
)

register(GRANITE, GRANITE_SWA, HYPERCLOVAX)
