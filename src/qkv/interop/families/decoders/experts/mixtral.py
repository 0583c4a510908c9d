"""Families with Llama's attention and a mixture of experts, whose router scores are a softmax over all experts.

Mixtral (Jiang et al. 2024), Qwen2-MoE (Yang et al. 2024) and Qwen3-MoE (Yang et al. 2025). Qwen2-MoE has biases of
queries, keys and values, and a gated shared expert; Qwen3-MoE has norms of queries and keys.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.decoders.qwen2 import GGUF_VALUES
from qkv.interop.mapping import gguf
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.masks import Causal
from qkv.spec.model import Model

_CHOSEN = {"top_k": "num_experts_per_tok"}
_MIXTRAL = experts.ExpertKeys(
    {**_CHOSEN, "num_experts": "num_local_experts", "hidden": "intermediate_size"}, {"normalised": True}
)
_QWEN = {**_CHOSEN, "num_experts": "num_experts", "hidden": "moe_intermediate_size", "normalised": "norm_topk_prob"}
_QWEN2_MOE = experts.ExpertKeys(
    {**_QWEN, "shared_hidden": "shared_expert_intermediate_size"},
    {"num_shared": 1, "shared_gate": True},
    experts.BY_STEP,
)
_QWEN3_MOE = experts.ExpertKeys(_QWEN, places=experts.BY_STEP)


def spec_of_mixtral(config: Config, head: Head) -> Model:
    """Build the spec of Mixtral: the weights of the chosen experts sum to 1."""
    mask = gated.windowed(config.integer("sliding_window")) if config.has("sliding_window") else Causal()
    attention = gated.attention_of(config, mask=mask)
    return _MIXTRAL.spec(config, gated.model_of(config, head, [attention] * config.layers("num_hidden_layers")))


def spec_of_qwen2_moe(config: Config, head: Head) -> Model:
    """Build the spec of Qwen2-MoE. ``norm_topk_prob``: the weights of experts sum to 1.

    If a sliding window is used, every second layer below ``max_window_layers`` has it, unless ``layer_types`` is set.
    """
    slides, first = config.flag("use_sliding_window", False), config.integer("max_window_layers", 28)
    kinds = gated.kinds_of(config, lambda i: gated.SLIDING if slides and i % 2 == 0 and i < first else gated.FULL)
    if gated.SLIDING in kinds:
        config.fixed("use_sliding_window", True, "the window size of layers with a window")
    attention = gated.attention_of(config, bias=config.flag("qkv_bias", True), output_bias=False)
    layers = [attention.changed(mask=gated.mask_of(config, kind)) for kind in kinds]
    return _QWEN2_MOE.spec(config, gated.model_of(config, head, layers))


def spec_of_qwen3_moe(config: Config, head: Head) -> Model:
    """Build the spec of Qwen3-MoE. ``norm_topk_prob``: the weights of experts sum to 1."""
    attention = gated.attention_of(
        config, bias=config.flag("attention_bias", False), qk_norm=gated.norm_of(config), mask=_mask(config)
    )
    return _QWEN3_MOE.spec(config, gated.model_of(config, head, [attention] * config.layers("num_hidden_layers")))


def _mask(config: Config) -> Any:
    window, slides = config.has("sliding_window"), config.flag("use_sliding_window", False)
    return gated.windowed(config.integer("sliding_window")) if window and slides else Causal()


def config_of_mixtral(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    return _MIXTRAL.config(spec, lambda dense: gated.config_of(dense, _window))


def _window(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
    return {"sliding_window": gated.window_of(attention)}


def config_of_qwen2_moe(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = _QWEN2_MOE.config(
        spec, lambda dense: gated.config_of(dense, lambda attention, feed_forward: {"qkv_bias": attention.bias})
    )
    return None if keys is None else {**keys, **gated.masks_config(spec)}


def config_of_qwen3_moe(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""

    def keys(attention: Attention, feed_forward: GatedFeedForward | FeedForward) -> dict[str, Any]:
        size = gated.window_of(attention)
        return {
            "attention_bias": attention.bias,
            "sliding_window": size,
            "use_sliding_window": size is not None,
        }

    return _QWEN3_MOE.config(spec, lambda dense: gated.config_of(dense, keys))


def _family(name: str, model_type: str, stem: str, **fields: Any) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        architectures={f"{stem}ForCausalLM": language_model(tied=False), **of_decoder(stem)},
        prefix="model.",
        ignored=gated.IGNORED,
        ignored_config={
            **HEAD_KEYS,
            **experts.IGNORED_CONFIG,
            "max_window_layers": "not read by the published code of this family",
        },
        **fields,
    )


MIXTRAL = _family(
    "Mixtral",
    "mixtral",
    "Mixtral",
    spec=spec_of_mixtral,
    config=config_of_mixtral,
    names=(*experts.names("model.layers.{layer}.block_sparse_moe", ("w1", "w3", "w2")), *gated.NAMES),
    defaults={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
    },
    synonyms={"num_experts": "num_local_experts"},
    gguf=gguf.GGUFLayout(
        "MixtralForCausalLM",
        "llama",
        (*gguf.keys_of_experts("num_local_experts"), gguf.ROTATED),
        {"hidden_act": "silu", "sliding_window": None},
        changes=gguf.PAIRS,
        experts=True,
    ),
)
_SIZE = gguf.MetadataKey("expert_feed_forward_length", "moe_intermediate_size")
_SHARED = gguf.MetadataKey("expert_shared_feed_forward_length", "shared_expert_intermediate_size")
_EVERY = {**GGUF_VALUES, "decoder_sparse_step": 1, "mlp_only_layers": []}
"""Config values of Qwen's models with experts that are constants in llama.cpp."""
_QWEN_DEFAULTS = {"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24, "max_position_embeddings": 32768}
QWEN2_MOE = _family(
    "Qwen2-MoE",
    "qwen2_moe",
    "Qwen2Moe",
    spec=spec_of_qwen2_moe,
    config=config_of_qwen2_moe,
    names=(*experts.names(experts.MLP, shared="shared_expert"), *gated.NAMES),
    defaults={
        **_QWEN_DEFAULTS,
        "intermediate_size": 5632,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "sliding_window": 4096,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4,
        "num_experts": 60,
        "norm_topk_prob": False,
        "mlp_only_layers": [],
    },
    gguf=gguf.GGUFLayout(
        "Qwen2MoeForCausalLM",
        "qwen2moe",
        gguf.keys_of_experts("num_experts", _SIZE, _SHARED),
        {**_EVERY, "qkv_bias": True, "norm_topk_prob": False},
        changes=(gguf.Change(r"\.shared_expert_gate\.", gguf.OneRow()),),
        experts=True,
    ),
)
QWEN3_MOE = _family(
    "Qwen3-MoE",
    "qwen3_moe",
    "Qwen3Moe",
    spec=spec_of_qwen3_moe,
    config=config_of_qwen3_moe,
    names=(*experts.names(experts.MLP), *gated.NAMES),
    defaults={
        **_QWEN_DEFAULTS,
        "intermediate_size": 6144,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "num_experts": 128,
        "norm_topk_prob": False,
        "mlp_only_layers": [],
    },
    synonyms={"num_local_experts": "num_experts"},
    gguf=gguf.GGUFLayout(
        "Qwen3MoeForCausalLM",
        "qwen3moe",
        gguf.keys_of_experts("num_experts", _SIZE),
        {**_EVERY, "attention_bias": False, "norm_topk_prob": True},
        experts=True,
    ),
)

register(MIXTRAL, QWEN2_MOE, QWEN3_MOE)
