"""Apertus (Swiss AI 2025): Llama's blocks with norms of queries and keys, and a feed-forward of xIELU without gate."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, HeadKeys, language_model, tagging
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import WithConstant
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import FeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Model

_LAYER, _FUNCTION = "model.layers.{layer}.", "model.layers.{layer}.mlp.act_fn."
NAMES = (
    NameRule("blocks.{layer}.branches.0.norm.*", f"{_LAYER}attention_layernorm.*"),
    NameRule("blocks.{layer}.branches.1.norm.*", f"{_LAYER}feedforward_layernorm.*"),
    NameRule(
        "blocks.{layer}.branches.1.body.activation.positive",
        (f"{_FUNCTION}alpha_p", f"{_FUNCTION}beta"),
        WithConstant(0.5),
    ),
    NameRule(
        "blocks.{layer}.branches.1.body.activation.negative",
        (f"{_FUNCTION}alpha_n", f"{_FUNCTION}eps"),
        WithConstant(-1e-6),
    ),
    *gated.NAMES,
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Apertus: ``attention_bias`` adds biases to attention."""
    config.nulls.discard("rope_parameters")  # null means the default, as in the published config class
    attention = gated.attention_of(config, bias=config.flag("attention_bias", False), qk_norm=gated.norm_of(config))
    return gated.model_of(config, head, [attention] * config.layers("num_hidden_layers"), part=FeedForward)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = gated.config_of(spec, lambda attention, _: {"attention_bias": attention.bias})
    if keys is None:
        return None
    # without a table, the published config class would use its default scaling
    table = {"rope_type": "default", "rope_theta": keys.pop("rope_theta"), **keys.pop("rope_scaling", {})}
    return {**keys, "rope_parameters": table}


APERTUS = Family(
    name="Apertus",
    model_types=("apertus",),
    architectures={
        "ApertusForCausalLM": language_model(tied=False),
        "ApertusForTokenClassification": tagging("score", keys=HeadKeys(body_dropout="hidden_dropout")),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config=HEAD_KEYS,
    defaults={
        "vocab_size": 131072,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_act": "xielu",
        "max_position_embeddings": 65536,
        "rms_norm_eps": 1e-5,
        "rope_theta": 12_000_000.0,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 12_000_000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    },
)

register(APERTUS)
