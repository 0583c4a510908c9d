"""CWM (Meta 2025) and Ministral (Mistral AI 2024): Llama's blocks, some of them with a sliding window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model


def _spec(kind: Callable[[int], str]) -> Callable[[Config, Head], Model]:
    def spec(config: Config, head: Head) -> Model:
        """Build the spec of CWM or Ministral: no biases; layers differ only in their masks."""
        config.nulls.discard("rope_parameters")  # null means the default, as in the published config class
        attention = gated.attention_of(config)
        masks = [gated.mask_of(config, each) for each in gated.kinds_of(config, kind)]
        config.fixed("mlp_bias", False, "biases of the feed-forward")
        return gated.model_of(config, head, [attention.changed(mask=mask) for mask in masks])

    return spec


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    shared, masks = gated.config_of(spec), gated.masks_config(spec)
    if shared is None:
        return None
    window = masks["sliding_window"] or spec.context_length  # transformers requires a window, even if no layer has one
    rope = {"rope_type": "default", "rope_theta": shared.pop("rope_theta"), **shared.pop("rope_scaling", {})}
    return {**shared, "rope_parameters": rope, "layer_types": masks["layer_types"], "sliding_window": window}


def _family(name: str, model_type: str, stem: str, kind: Callable[[int], str], **fields: Any) -> Family:
    answers = stem == "Ministral"
    return Family(
        name=name,
        model_types=(model_type,),
        architectures={
            f"{stem}ForCausalLM": language_model(tied=False),
            **(of_decoder(stem) if answers else {}),
        },
        spec=_spec(kind),
        config=config,
        names=gated.NAMES,
        prefix="model.",
        ignored=gated.IGNORED,
        ignored_config=HEAD_KEYS,
        base="Mistral",
        **fields,
    )


CWM = _family(
    "CWM",
    "cwm",
    "Cwm",
    lambda i: gated.SLIDING if i % 4 else gated.FULL,
    defaults={
        "vocab_size": 128256,
        "hidden_size": 6144,
        "intermediate_size": 21504,
        "num_hidden_layers": 64,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1_000_000.0,
            "factor": 16.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "sliding_window": 8192,
    },
)
MINISTRAL = _family(
    "Ministral",
    "ministral",
    "Ministral",
    lambda i: gated.SLIDING,
    defaults={
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
)

register(CWM, MINISTRAL)
