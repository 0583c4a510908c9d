"""Phi-3 and Phi-4 (Abdin et al. 2024): Llama's blocks, with q, k and v in one tensor, and gate and up in another.

Models with long contexts have LongRoPE.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.common.rope import FRACTION, ORIGINAL, rope_config, rope_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import Head
from qkv.spec.masks import Causal
from qkv.spec.model import Model
from qkv.spec.parts import Rope

NAMES = (
    NameRule("blocks.{layer}.branches.0.body.qkv.*", "model.layers.{layer}.self_attn.qkv_proj.*"),
    gated.GATE_UP,
    *gated.NAMES,
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Phi-3: no biases; RoPE on a part of each head; a sliding window in every layer, or none."""
    _name_longrope(config)
    mask = gated.windowed(config.integer("sliding_window")) if config.has("sliding_window") else Causal()
    attention = gated.attention_of(config, mask=mask, relative=rope_of(config, 1.0))
    return gated.model_of(config, head, [attention] * config.layers("num_hidden_layers"))


def _name_longrope(config: Config) -> None:
    """Set the name of LongRoPE, which older configs call "su" or "yarn"."""
    for key in ("rope_scaling", "rope_parameters"):
        values = config.table(key).values
        for name in ("type", "rope_type"):
            if values.get(name) in ("su", "yarn"):
                values[name] = "longrope"


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Phi-3's. Callers read them back to verify."""
    keys = gated.config_of(
        spec, lambda attention, feed_forward: {"sliding_window": gated.window_of(attention)}, rope=False
    )
    match spec.layers[:1]:
        case (block,) if keys is not None:
            attention = block.branches[0]
        case _:
            return None
    turned = None
    if isinstance(attention, Attention) and isinstance(attention.relative, Rope):
        turned = rope_config(attention.relative, partial=True)
    if turned is None:
        return None
    scaling = turned.get("rope_scaling", {})
    if scaling.get("rope_type", "longrope") != "longrope":
        return None
    if scaling:
        turned[ORIGINAL] = scaling[ORIGINAL]  # takes precedence beside the table
    relative: Any = attention.relative  # type: ignore[union-attr]
    return {**keys, **turned, FRACTION: relative.fraction, "pad_token_id": None}


PHI3 = Family(
    name="Phi-3",
    model_types=("phi3",),
    architectures={"Phi3ForCausalLM": language_model(tied=False), **of_decoder("Phi3", question_answering=False)},
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={
        **HEAD_KEYS,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop"), "dropout in training, which a recipe sets"),
        ORIGINAL: "part of a scaling of RoPE, which this config lacks",
    },
    defaults={
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        ORIGINAL: 4096,
    },
    base="Mistral",
)

register(PHI3)
