"""ModernBERT decoder (Ettin, Weller et al. 2025): ModernBERT's blocks with causal attention, for text generation."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.encoders import modernbert
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.masks import Causal
from qkv.spec.model import Model


def spec(config: Config, head: Head) -> Model:
    """Build the spec of the decoder: in layers with a window a position sees ``local_attention`` // 2 positions."""
    window = gated.windowed(modernbert.reach_of(config, 1))
    return modernbert.stack_of(config, head, {modernbert.FULL: Causal(), modernbert.SLIDING: window})


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = modernbert.config(spec)
    return keys and {
        **keys,
        "pad_token_id": 0,
    }  # the library requires an id, and its default exceeds a small vocabulary


_ATTENTION = "model.layers.{layer}.attn."
NAMES = (
    NameRule("blocks.{layer}.branches.0.body.qkv.*", tuple(f"{_ATTENTION}{x}_proj.*" for x in "qkv"), QKV),
    *modernbert.NAMES,
)
_WORDS = (
    NameRule("head.transform.dense.*", "lm_head.dense.*"),
    NameRule("head.transform.norm.*", "lm_head.norm.*"),
    NameRule("head.weight", "decoder.weight"),
    NameRule("head.bias", "decoder.bias"),
)

MODERNBERT_DECODER = Family(
    name="ModernBERT decoder",
    model_types=("modernbert-decoder",),
    architectures={
        "ModernBertDecoderForCausalLM": Architecture(modernbert.word_head, modernbert.word_keys, _WORDS),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored_config=modernbert.IGNORED_CONFIG,
    base="ModernBERT",
)

register(MODERNBERT_DECODER)
