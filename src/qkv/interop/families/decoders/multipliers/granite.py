"""Granite (IBM 2024): Llama's blocks with fixed factors of embeddings, scores, branches and logits."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, scaled_language_model
from qkv.interop.families.common.multipliers import attention_multiplier, factor_of, temperature_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Model, Text
from qkv.spec.parts import Add


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Granite: ``attention_multiplier`` is the scale of the scores; ``attention_bias`` and
    ``mlp_bias`` add biases.
    """
    attention = gated.attention_of(
        config, bias=config.flag("attention_bias", False), temperature=temperature_of(config, "attention_multiplier")
    )
    layers = [attention] * config.layers("num_hidden_layers")
    model = gated.model_of(config, head, layers, config.flag("mlp_bias", False))
    text = model.frontend.changed(multiplier=factor_of(config, "embedding_multiplier"))
    return gated.with_blocks(
        model.changed(frontend=text), residual=Add(factor=factor_of(config, "residual_multiplier"))
    )


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Granite's. Callers read them back."""

    def keys(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
        return {
            "attention_bias": attention.bias,
            "mlp_bias": feed_forward.bias,
            "attention_multiplier": attention_multiplier(attention, spec.width),
        }

    shared = gated.config_of(spec, keys)
    match spec.frontend, [block.residual for block in spec.layers[:1]]:
        case Text() as text, [Add() as residual] if shared is not None:
            pass
        case _:
            return None
    return {**shared, "embedding_multiplier": text.multiplier, "residual_multiplier": residual.factor}


GRANITE = Family(
    name="Granite",
    model_types=("granite",),
    architectures={"GraniteForCausalLM": scaled_language_model(False, "logits_scaling", 1.0, divides=True)},
    spec=spec,
    config=config,
    names=gated.NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config=HEAD_KEYS,
    defaults={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    base="Llama",
)

register(GRANITE)
