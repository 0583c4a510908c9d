"""Nemotron-4 (Parmar et al. 2024) and Minitron: layer norms with scale 1 + weight, RoPE on half of each head.

The feed-forward has squared ReLU and no gate.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.common.rope import FRACTION, rope_config, rope_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.parts import LayerNorm, Rope


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Nemotron: ``attention_bias`` and ``mlp_bias`` add biases."""
    attention = gated.attention_of(config, bias=config.flag("attention_bias", False), relative=rope_of(config, 0.5))
    norm = LayerNorm(eps=config.number("norm_eps", 1e-5), zero_centred=True)
    layers, bias = [attention] * config.layers("num_hidden_layers"), config.flag("mlp_bias", False)
    return gated.model_of(config, head, layers, bias, norm, FeedForward)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = gated.config_of(
        spec,
        lambda attention, feed_forward: {"attention_bias": attention.bias, "mlp_bias": feed_forward.bias},
        rope=False,
    )
    first = spec.layers[0].branches[0] if spec.layers else None
    match first:
        case Attention(relative=Rope() as rope) if keys is not None and "layer_norm_eps" in keys:
            turned = rope_config(rope, partial=True)
        case _:
            return None
    if turned is None:
        return None
    return {**keys, **turned, FRACTION: rope.fraction, "norm_eps": keys.pop("layer_norm_eps")}


NEMOTRON = Family(
    name="Nemotron",
    model_types=("nemotron",),
    architectures={"NemotronForCausalLM": language_model(tied=False), **of_decoder("Nemotron")},
    spec=spec,
    config=config,
    names=gated.NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config=HEAD_KEYS,
    defaults={
        "vocab_size": 256000,
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "num_hidden_layers": 32,
        "num_attention_heads": 48,
        "hidden_act": "relu2",
        "max_position_embeddings": 4096,
    },
)

register(NEMOTRON)
