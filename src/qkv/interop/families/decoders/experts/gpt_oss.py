"""gpt-oss (OpenAI 2025): attention with a learned sink per head, and a sliding window in every second layer.

Experts have clipped gate and up features, whose rows alternate in the files.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.mapping import gguf
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import ALTERNATING, PAIR, TRANSPOSED, Chained
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Model

_KEYS = experts.ExpertKeys(
    {
        "num_experts": "num_local_experts",
        "top_k": "num_experts_per_tok",
        "hidden": "intermediate_size",
        "limit": "swiglu_limit",
    },
    {"activation": "quick_gelu", "shift": 1.0, "bias": True, "router_bias": True, "normalised": True},
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of gpt-oss.

    An expert computes (u + 1) · g σ(1.702 g), with g and u clipped at ``swiglu_limit``. The weights of the chosen
    experts are the softmax of their scores only, which equals the softmax of all scores divided by its sum over the
    chosen ones. Layers 0, 2, … have a sliding window, unless ``layer_types`` is set.
    """
    config.fixed("swiglu_alpha", 1.702, "the activation of experts")
    config.nulls.discard("rope_parameters")  # null means the default, as in the published config class
    kinds = gated.kinds_of(config, lambda i: gated.FULL if i % 2 else gated.SLIDING)
    attention = gated.attention_of(config, bias=config.flag("attention_bias", True), learned_sink=True)
    layers = [attention.changed(mask=gated.mask_of(config, kind)) for kind in kinds]
    return _KEYS.spec(config, gated.model_of(config, head, layers))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys, masks = _KEYS.config(spec, lambda dense: gated.config_of(dense, _bias)), gated.masks_config(spec)
    if keys is None:
        return None
    table = keys.pop("rope_scaling", {"rope_type": "default"})
    window = masks["sliding_window"] or spec.context_length  # transformers requires a window, even if no layer has one
    return {
        **keys,
        "hidden_act": "silu",  # not read
        "rope_parameters": {**table, "rope_theta": keys["rope_theta"]},
        "layer_types": masks["layer_types"],
        "sliding_window": window,
    }


def _bias(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
    return {"attention_bias": attention.bias}


_EXPERT, _STORED = experts.OURS + "experts.{expert}.", experts.MLP + ".experts."
NAMES = (
    NameRule("blocks.{layer}.branches.0.body.sink", "model.layers.{layer}.self_attn.sinks"),
    NameRule(_EXPERT + "gate_up.weight", _STORED + "gate_up_proj[{expert}]", Chained((TRANSPOSED, ALTERNATING))),
    NameRule(_EXPERT + "gate_up.bias", _STORED + "gate_up_proj_bias[{expert}]", ALTERNATING),
    NameRule(_EXPERT + "down.weight", _STORED + "down_proj[{expert}]", TRANSPOSED),
    NameRule(_EXPERT + "down.bias", _STORED + "down_proj_bias[{expert}]"),
    NameRule(experts.OURS + "router.*", experts.MLP + ".router.*"),
    *gated.NAMES,
)
_PARTS = experts.MLP + ".experts.{expert}."
_GGUF_NAMES = (
    NameRule("blocks.{layer}.branches.0.body.sink", "model.layers.{layer}.self_attn.sinks.weight"),
    NameRule(_EXPERT + "gate_up.*", (_PARTS + "gate_proj.*", _PARTS + "up_proj.*"), PAIR),
    NameRule(_EXPERT + "down.*", _PARTS + "down_proj.*"),
)
"""Names in GGUF files, where gate and up are two tensors of all experts."""


def _scaling(values: gguf.Values) -> dict[str, Any] | None:
    table = values.get("rope_scaling")
    return {**table, "truncate": False} if table else None


def _kinds(values: gguf.Values) -> list[str]:
    return [gated.FULL if i % 2 else gated.SLIDING for i in range(values["num_hidden_layers"])]


GPT_OSS = Family(
    name="gpt-oss",
    model_types=("gpt_oss",),
    architectures={
        "GptOssForCausalLM": language_model(tied=False),
        **of_decoder("GptOss", question_answering=False),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={
        **HEAD_KEYS,
        **experts.IGNORED_CONFIG,
        "experts_per_token": "not read by the published code of this family",
        "initial_context_length": "not read by the published code of this family",
    },
    defaults={
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "swiglu_limit": 7.0,
        "rope_theta": 150_000.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    synonyms={"num_experts": "num_local_experts"},
    gguf=gguf.GGUFLayout(
        "GptOssForCausalLM",
        "gpt-oss",
        gguf.keys_of_experts(
            "num_local_experts",
            gguf.MetadataKey("expert_feed_forward_length", "intermediate_size"),
            gguf.MetadataKey("attention.sliding_window", "sliding_window"),
        ),
        {
            "hidden_act": "silu",
            "attention_bias": True,
            "swiglu_limit": 7.0,
            "layer_types": _kinds,
            "rope_scaling": _scaling,
            "rope_parameters": lambda values: {"rope_type": "default"},
        },
        names=_GGUF_NAMES,
        experts=True,
        note="llama.cpp rounds the features between which YaRN interpolates; the published model does not",
    ),
)

register(GPT_OSS)
