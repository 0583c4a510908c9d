"""Qwen 2 and 2.5 (Yang et al. 2024): Llama's blocks with biases of q, k and v only, and a window in some layers."""

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
    """Build the spec of Qwen 2: like Llama, with biases of q, k and v, but not of the output projection."""
    attention = gated.attention_of(config, bias=True, output_bias=False)
    return gated.model_of(config, head, [attention.changed(mask=mask) for mask in gated.masks_of(config)])


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Qwen 2's. Callers read them back to verify."""
    keys = gated.config_of(spec)
    return None if keys is None else {**keys, **gated.masks_config(spec)}


GGUF_VALUES = {"hidden_act": "silu", "use_sliding_window": False, "sliding_window": None}
"""Config values of Qwen models that are constants in llama.cpp."""

QWEN2 = Family(
    name="Qwen2",
    model_types=("qwen2",),
    architectures={"Qwen2ForCausalLM": language_model(tied=False), **of_decoder("Qwen2", question_answering=False)},
    spec=spec,
    config=config,
    names=gated.NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config=HEAD_KEYS,
    defaults={
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
    },
    gguf=gguf.GGUFLayout("Qwen2ForCausalLM", "qwen2", gguf.GATED, {**GGUF_VALUES, "head_dim": gguf.width_of_head}),
)

register(QWEN2)
