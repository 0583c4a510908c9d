"""NanoChat (Karpathy 2025): RMS norms without weights, also of the embeddings and of rotated queries and keys.

The feed-forward has squared ReLU and no gate. RoPE rotates in the opposite direction, so the two halves of a head are
exchanged on conversion.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, capped_language_model
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import EXCHANGED_QUERIES_AND_KEYS
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import FeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.parts import RMSNorm

_LAYER = "model.layers.{layer}."
NAMES = (
    NameRule(
        "blocks.{layer}.branches.0.body.qkv.*",
        (f"{_LAYER}self_attn.q_proj.*", f"{_LAYER}self_attn.k_proj.*", f"{_LAYER}self_attn.v_proj.*"),
        EXCHANGED_QUERIES_AND_KEYS,
    ),
    NameRule("blocks.{layer}.branches.1.body.up.*", f"{_LAYER}mlp.fc1.*"),
    NameRule("blocks.{layer}.branches.1.body.down.*", f"{_LAYER}mlp.fc2.*"),
    *gated.NAMES,
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of NanoChat: ``attention_bias`` adds biases."""
    norm = RMSNorm(eps=config.number("rms_norm_eps", 1e-6), weight=False)
    attention = gated.attention_of(
        config, bias=config.flag("attention_bias", False), qk_norm=norm, qk_norm_after="rotation"
    )
    layers = [attention] * config.layers("num_hidden_layers")
    model = gated.model_of(config, head, layers, norm=norm, part=FeedForward)
    return model.changed(frontend=model.frontend.changed(norm=norm))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    return gated.config_of(spec, lambda attention, _: {"attention_bias": attention.bias})


NANOCHAT = Family(
    name="NanoChat",
    model_types=("nanochat",),
    architectures={"NanoChatForCausalLM": capped_language_model(False, 15.0)},
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config=HEAD_KEYS,
    defaults={
        "vocab_size": 50304,
        "hidden_size": 768,
        "intermediate_size": 8192,
        "num_hidden_layers": 12,
        "num_attention_heads": 6,
        "hidden_act": "relu2",
    },
)

register(NANOCHAT)
