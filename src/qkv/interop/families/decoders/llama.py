"""Llama 1, 2 and 3 (Touvron et al. 2023; Dubey et al. 2024)."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.mapping import gguf
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Llama.

    ``attention_bias`` and ``mlp_bias`` add biases to all linear layers of attention and feed-forward.
    """
    attention = gated.attention_of(config, bias=config.flag("attention_bias", False))
    layers = config.layers("num_hidden_layers")
    return gated.model_of(config, head, [attention] * layers, config.flag("mlp_bias", False))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Llama's. Callers read them back to verify."""
    return gated.config_of(
        spec, lambda attention, feed_forward: {"attention_bias": attention.bias, "mlp_bias": feed_forward.bias}
    )


LLAMA = Family(
    name="Llama",
    model_types=("llama",),
    architectures={"LlamaForCausalLM": language_model(tied=False), **of_decoder("Llama", question_answering=False)},
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
    gguf=gguf.GGUFLayout(
        "LlamaForCausalLM",
        "llama",
        (*gguf.GATED, *gguf.HEADS, gguf.ROTATED),
        {"hidden_act": "silu"},
        {"attention_bias": "blk.0.attn_output.bias", "mlp_bias": "blk.0.ffn_down.bias"},
        gguf.PAIRS,
        factors=True,
    ),
)

register(LLAMA)
