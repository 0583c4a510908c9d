"""Mistral (Jiang et al. 2023): Llama's blocks without biases, with an optional sliding window in every layer."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.mapping import gguf
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.masks import Causal
from qkv.spec.model import Model


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Mistral: Llama's blocks with a sliding window in every layer.

    If ``sliding_window`` is null, attention is causal without a window.
    """
    mask = gated.windowed(config.integer("sliding_window")) if config.has("sliding_window") else Causal()
    attention = gated.attention_of(config, mask=mask)
    return gated.model_of(config, head, [attention] * config.layers("num_hidden_layers"))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Mistral's. Callers read them back to
    verify.
    """
    return gated.config_of(spec, lambda attention, feed_forward: {"sliding_window": gated.window_of(attention)})


MISTRAL = Family(
    name="Mistral",
    model_types=("mistral",),
    architectures={"MistralForCausalLM": language_model(tied=False), **of_decoder("Mistral")},
    spec=spec,
    config=config,
    names=gated.NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config=HEAD_KEYS,
    defaults={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    base="Llama",
    gguf=gguf.GGUFLayout(
        "MistralForCausalLM",
        "llama",
        (*gguf.GATED, *gguf.HEADS, gguf.ROTATED),
        {"hidden_act": "silu", "sliding_window": None},
        changes=gguf.PAIRS,
    ),
)

register(MISTRAL)
