"""MiniCPM3 (OpenBMB 2024): latent attention, and constant factors of embeddings, branches and logits.

Branches are multiplied by ``scale_depth`` / √L in a model of L layers, logits by ``dim_model_base`` / D.
"""

from __future__ import annotations

import math
from typing import Any

from qkv.interop.families.common import gated, latent
from qkv.interop.families.common.heads import HEAD_KEYS
from qkv.interop.families.common.multipliers import factor_of
from qkv.interop.families.common.shape import shortest
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.model import Model, Text
from qkv.spec.parts import Add


def spec(config: Config, head: Head) -> Model:
    """Build the spec of MiniCPM3; a missing ``scale_depth`` means √L, a missing ``v_head_dim`` D / heads."""
    config.fixed("mlp_bias", False, "biases of the feed-forward networks")
    width, layers = config.size("hidden_size"), config.layers("num_hidden_layers")
    if not config.has("v_head_dim"):  # computed, as in the published config class
        config.values["v_head_dim"] = width // config.size("num_attention_heads")
    scale = factor_of(config, "scale_depth") if config.has("scale_depth") else math.sqrt(layers)
    model = latent.model_of(config, head)
    text = model.frontend.changed(multiplier=factor_of(config, "scale_emb"))
    return gated.with_blocks(model.changed(frontend=text), residual=Add(factor=scale / math.sqrt(layers)))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys, root, head = latent.config_of(spec), math.sqrt(len(spec.layers)), spec.head
    match spec.frontend, [block.residual for block in spec.layers[:1]]:
        case Text() as text, [Add(factor=factor)] if keys is not None and isinstance(head, LanguageModelHead):
            depth = shortest(factor * root, lambda number: number / root == factor)
            scaled = {"scale_emb": text.multiplier, "scale_depth": depth, "dim_model_base": _base(head, spec.width)}
            return {**keys, **scaled}
        case _:
            return None


def _read(config: Config) -> Head:
    width = config.size("hidden_size")
    base = config.size("dim_model_base") if config.has("dim_model_base") else width
    return LanguageModelHead(tied=config.flag("tie_word_embeddings", True), scale=base / width)


def _base(head: LanguageModelHead, width: int) -> int:
    """Return ``dim_model_base``, the nearest whole number; callers read it back."""
    return max(1, round(head.scale * width))


def _write(head: Head) -> dict[str, Any] | None:
    return {"tie_word_embeddings": head.tied} if isinstance(head, LanguageModelHead) else None


MINICPM3 = Family(
    name="MiniCPM3",
    base="Youtu",
    model_types=("minicpm3",),
    architectures={"MiniCPM3ForCausalLM": Architecture(_read, _write, (NameRule("head.weight", "lm_head.weight"),))},
    spec=spec,
    config=config,
    names=(*latent.IN_HALVES, *latent.NAMES, *gated.NAMES),
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={
        **HEAD_KEYS,
        **dict.fromkeys(("head_dim", "qk_head_dim"), "given by qk_nope_head_dim and qk_rope_head_dim"),
    },
    defaults={
        "vocab_size": 73448,
        "hidden_size": 2560,
        "intermediate_size": 6400,
        "num_hidden_layers": 62,
        "num_attention_heads": 40,
        "num_key_value_heads": 40,
        "max_position_embeddings": 32768,
        "initializer_range": 0.1,
        "rms_norm_eps": 1e-5,
        "kv_lora_rank": 256,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "scale_emb": 12.0,
        "scale_depth": 1.4,
        "dim_model_base": 256,
    },
)

register(MINICPM3)
