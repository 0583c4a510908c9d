"""Qwen 3 (Yang et al. 2025): Llama's blocks with norms of queries and keys per head, and a window in some layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import language_model, of_decoder
from qkv.interop.families.decoders.qwen2 import GGUF_VALUES, QWEN2
from qkv.interop.mapping import gguf
from qkv.interop.mapping.config import Config
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Qwen 3: like Llama, with norms of queries and keys; all norms have the same epsilon."""
    head_dim = config.size("head_dim", 128)
    attention = gated.attention_of(
        config, bias=config.flag("attention_bias", False), head_dim=head_dim, qk_norm=gated.norm_of(config)
    )
    return gated.model_of(config, head, [attention.changed(mask=mask) for mask in gated.masks_of(config)])


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Qwen 3's. Callers read them back to verify."""
    keys = gated.config_of(spec, lambda attention, feed_forward: {"attention_bias": attention.bias})
    return None if keys is None else {**keys, **gated.masks_config(spec)}


QWEN3 = replace(
    QWEN2,
    name="Qwen3",
    model_types=("qwen3",),
    architectures={"Qwen3ForCausalLM": language_model(tied=False), **of_decoder("Qwen3", question_answering=False)},
    spec=spec,
    config=config,
    gguf=gguf.GGUFLayout(
        "Qwen3ForCausalLM", "qwen3", (*gguf.GATED, *gguf.HEADS), {**GGUF_VALUES, "attention_bias": False}
    ),
)

register(QWEN3)
