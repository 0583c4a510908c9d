"""DiffLlama (2024): Llama's blocks with differential attention, whose factor grows with the layer."""

from __future__ import annotations

import math
from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import Head
from qkv.spec.mixers.latent_attention import DifferentialAttention
from qkv.spec.model import Block, Model

_SHARED = ("num_heads", "num_kv_heads", "head_dim", "bias", "relative", "dropout")
"""Fields that attention and differential attention share."""


def spec(config: Config, head: Head) -> Model:
    """Build the spec of DiffLlama: ``attention_bias`` adds biases to attention."""
    config.fixed("attention_dropout", 0.0, "dropout of differences of attention weights, which is not defined")
    plain = gated.attention_of(config, bias=config.flag("attention_bias", False))
    fields = {name: getattr(plain, name) for name in _SHARED}
    layers, eps = config.layers("num_hidden_layers"), config.number("rms_norm_eps")
    mixers = [DifferentialAttention(**fields, start=_start(i), eps=eps) for i in range(layers)]
    return gated.model_of(config, head, mixers)


def _start(layer: int) -> float:
    """Return the first factor λ₀ of a layer, 0.8 - 0.6 e^(-0.3 layer)."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    plain = spec.changed(blocks=tuple(_plain(block) for block in spec.layers), num_layers=None)
    return gated.config_of(plain, lambda attention, _: {"attention_bias": attention.bias})


def _plain(block: Block) -> Block:
    """Return the block with attention instead of differential attention, whose config keys are the same."""
    match block.branches:
        case (DifferentialAttention() as part, *rest):
            return block.changed(branches=(Attention(**{name: getattr(part, name) for name in _SHARED}), *rest))
        case _:
            return block


_ATTENTION = "model.layers.{layer}.self_attn."
_VECTORS = {"first_query": "q1", "first_key": "k1", "second_query": "q2", "second_key": "k2"}
NAMES = (
    *(NameRule(f"blocks.{{layer}}.branches.0.body.{ours}", f"{_ATTENTION}lambda_{x}") for ours, x in _VECTORS.items()),
    *gated.NAMES,
)

DIFFLLAMA = Family(
    name="DiffLlama",
    base="Llama",
    model_types=("diffllama",),
    architectures={
        "DiffLlamaForCausalLM": language_model(tied=False),
        **of_decoder("DiffLlama", question_answering=False),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={**HEAD_KEYS, "lambda_std_dev": "first weights"},
    defaults={
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "rms_norm_eps": 1e-5,
    },
)

register(DIFFLLAMA)
