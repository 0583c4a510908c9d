"""SmolLM3 (Hugging Face 2025): Llama's blocks, every fourth of them without positions (NoPE)."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.parts import NoRelative
from qkv.system.errors import UserError


def spec(config: Config, head: Head) -> Model:
    """Build the spec of SmolLM3: layer i has RoPE if ``no_rope_layers[i]`` is 1.

    By default, every ``no_rope_layer_interval``-th layer has no RoPE.
    """
    layers = config.layers("num_hidden_layers")
    kinds = config.items("layer_types") or ["full_attention"]
    window, slides = config.has("sliding_window"), config.flag("use_sliding_window", False)
    if set(kinds) != {"full_attention"} or (window and slides):
        raise UserError(f"{config.source}: layer_types names a sliding window, which qkv does not support for SmolLM3")
    interval = config.integer("no_rope_layer_interval", 4)
    turned = config.items("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(layers)]
    if len(turned) != layers:
        raise UserError(
            f"{config.source}: no_rope_layers names {len(turned)} layers, but num_hidden_layers is {layers}"
        )
    attention = gated.attention_of(config, bias=config.flag("attention_bias", False))
    plain = attention.changed(relative=NoRelative())
    return gated.model_of(config, head, [attention if one else plain for one in turned], config.flag("mlp_bias", False))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    alike, turned = gated.with_rope(spec)
    keys = gated.config_of(
        alike, lambda attention, feed_forward: {"attention_bias": attention.bias, "mlp_bias": feed_forward.bias}
    )
    return None if keys is None else {**keys, "no_rope_layers": [int(one) for one in turned], "pad_token_id": None}


SMOLLM3 = Family(
    name="SmolLM3",
    model_types=("smollm3",),
    architectures={"SmolLM3ForCausalLM": language_model(tied=True), **of_decoder("SmolLM3")},
    spec=spec,
    config=config,
    names=gated.NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config=HEAD_KEYS,
    defaults={
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "rope_theta": 2000000.0,
    },
    base="Llama",
)

register(SMOLLM3)
