"""Arcee (Arcee AI 2025) and Jais 2 (Inception 2025): like Llama, but the feed-forward has squared ReLU and no gate.

Arcee has RMSNorm, Jais 2 LayerNorm and biases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.branches import FeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.parts import LayerNorm, Norm


def _layer_norm(config: Config) -> Norm:
    return LayerNorm(eps=config.number("layer_norm_eps", 1e-5))


def _spec(norm: Callable[[Config], Norm]) -> Callable[[Config, Head], Model]:
    def spec(config: Config, head: Head) -> Model:
        """Build the spec of Arcee or Jais 2: ``attention_bias`` and ``mlp_bias`` add biases to all linear layers."""
        attention = gated.attention_of(config, bias=config.flag("attention_bias"))
        layers, bias = config.layers("num_hidden_layers"), config.flag("mlp_bias")
        return gated.model_of(config, head, [attention] * layers, bias, norm(config), FeedForward)

    return spec


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    return gated.config_of(
        spec, lambda attention, feed_forward: {"attention_bias": attention.bias, "mlp_bias": feed_forward.bias}
    )


def _family(name: str, model_type: str, architectures: dict[str, Any], **fields: Any) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        architectures=architectures,
        config=config,
        names=gated.NAMES,
        prefix="model.",
        ignored=gated.IGNORED,
        ignored_config=HEAD_KEYS,
        base="Llama",
        **fields,
    )


ARCEE = _family(
    "Arcee",
    "arcee",
    {"ArceeForCausalLM": language_model(tied=False), **of_decoder("Arcee")},
    spec=_spec(gated.norm_of),
    defaults={
        "vocab_size": 32000,
        "hidden_size": 2560,
        "intermediate_size": 18432,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "hidden_act": "relu2",
        "attention_bias": False,
        "mlp_bias": False,
    },
)
JAIS2 = _family(
    "Jais 2",
    "jais2",
    {"Jais2ForCausalLM": language_model(tied=False)},
    spec=_spec(_layer_norm),
    defaults={
        "vocab_size": 150272,
        "hidden_size": 3328,
        "intermediate_size": 26624,
        "num_hidden_layers": 32,
        "num_attention_heads": 26,
        "max_position_embeddings": 8192,
        "hidden_act": "relu2",
        "attention_bias": True,
        "mlp_bias": True,
    },
)

register(ARCEE, JAIS2)
