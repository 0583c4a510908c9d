"""Helium (Kyutai 2025) and the dense ERNIE 4.5 (Baidu 2025): Llama's blocks; RoPE pairs are adjacent in the files."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model


def spec_of_helium(config: Config, head: Head) -> Model:
    """Build the spec of Helium.

    ``attention_bias`` adds biases to queries, keys and values, ``mlp_bias`` to the feed-forward.
    """
    attention = gated.attention_of(config, bias=config.flag("attention_bias", False), output_bias=False)
    layers = config.layers("num_hidden_layers")
    return gated.model_of(config, head, [attention] * layers, config.flag("mlp_bias", False))


def spec_of_ernie(config: Config, head: Head) -> Model:
    """Build the spec of ERNIE 4.5: ``use_bias`` adds biases to all linear layers."""
    bias = config.flag("use_bias", False)
    attention = gated.attention_of(config, bias=bias)
    return gated.model_of(config, head, [attention] * config.layers("num_hidden_layers"), bias)


def config_of_helium(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Helium's. Callers read them back to verify."""
    return gated.config_of(
        spec, lambda attention, feed_forward: {"attention_bias": attention.bias, "mlp_bias": feed_forward.bias}
    )


def config_of_ernie(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not ERNIE's. Callers read them back to verify."""
    return gated.config_of(spec, lambda attention, feed_forward: {"use_bias": attention.bias})


def _family(name: str, model_type: str, architectures: dict[str, Any], **fields: Any) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        architectures=architectures,
        names=(gated.INTERLEAVED, *gated.NAMES),
        prefix="model.",
        ignored=gated.IGNORED,
        ignored_config=HEAD_KEYS,
        base="Llama",
        **fields,
    )


HELIUM = _family(
    "Helium",
    "helium",
    {"HeliumForCausalLM": language_model(tied=False), **of_decoder("Helium", question_answering=False)},
    spec=spec_of_helium,
    config=config_of_helium,
    defaults={
        "vocab_size": 48000,
        "hidden_size": 2560,
        "intermediate_size": 7040,
        "num_hidden_layers": 24,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-8,
        "rope_theta": 100000.0,
    },
)
ERNIE = _family(
    "ERNIE 4.5",
    "ernie4_5",
    {"Ernie4_5ForCausalLM": language_model(tied=True)},
    spec=spec_of_ernie,
    config=config_of_ernie,
    defaults={
        "vocab_size": 103424,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 18,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
    },
)

register(HELIUM, ERNIE)
