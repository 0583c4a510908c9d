"""The text model of Aria (Rhymes AI 2024): Llama's attention, experts in every layer and shared experts."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import TRANSPOSED
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Model

_KEYS = experts.ExpertKeys(
    {
        "num_experts": "moe_num_experts",
        "top_k": "moe_topk",
        "hidden": "intermediate_size",
        "num_shared": "moe_num_shared_experts",
    },
    {"normalised": True},
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Aria's text model: the weights of the chosen experts sum to 1.

    The published code always uses SiLU in routed experts, and ``hidden_act`` in shared experts; qkv supports only
    "silu".
    """
    config.fixed("hidden_act", "silu", "the activation of shared experts only")
    config.fixed("mlp_bias", False, "biases of the shared experts")
    attention = gated.attention_of(config, bias=config.flag("attention_bias", False))
    return _KEYS.spec(config, gated.model_of(config, head, [attention] * config.layers("num_hidden_layers")))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Aria's. Callers read them back to verify."""
    return _KEYS.config(spec, lambda dense: gated.config_of(dense, _bias))


def _bias(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
    return {"attention_bias": attention.bias}


_EXPERT, _STORED = experts.OURS + "experts.{expert}.", experts.MLP + ".experts."
ARIA = Family(
    name="Aria (text)",
    model_types=("aria_text",),
    architectures={"AriaTextForCausalLM": language_model(tied=False)},
    spec=spec,
    config=config,
    names=(
        NameRule(_EXPERT + "gate_up.weight", _STORED + "fc1.weight[{expert}]", TRANSPOSED),
        NameRule(_EXPERT + "down.weight", _STORED + "fc2.weight[{expert}]", TRANSPOSED),
        *experts.names(experts.MLP, router="router"),
        *gated.NAMES,
    ),
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={**HEAD_KEYS, **experts.IGNORED_CONFIG},
    defaults={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "moe_num_experts": 8,
        "moe_topk": 2,
        "moe_num_shared_experts": 2,
    },
)

register(ARIA)
