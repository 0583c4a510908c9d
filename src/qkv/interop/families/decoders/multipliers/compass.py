"""The text model of Command A Vision's successor ("cohere_compass_text", Cohere 2026): Cohere's parallel blocks.

Layers with a window and layers with full attention may have different RoPE, or none. RoPE pairs are halves of a head.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, scaled_language_model
from qkv.interop.families.common.rope import rope_of, rope_table
from qkv.interop.families.decoders.multipliers import cohere
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.parts import NoRelative, Relative, Rope
from qkv.system.errors import UserError

KINDS = (gated.SLIDING, gated.FULL)


def spec(config: Config, head: Head) -> Model:
    """Build the spec: without ``layer_types``, all layers have full attention."""
    kinds, tables = gated.kinds_of(config, lambda i: gated.FULL), config.table("rope_parameters")
    attention = gated.attention_of(config, bias=config.flag("attention_bias", False), relative=Rope())
    layers = {
        kind: attention.changed(mask=gated.mask_of(config, kind), relative=_relative(config, tables, kind))
        for kind in dict.fromkeys(kinds)
    }
    for key in (*KINDS, "rope_type", "rope_theta"):  # published files have the last two beside the tables
        tables.has(key)
    return cohere.parallel(config, head, [layers[kind] for kind in kinds])


def _relative(config: Config, tables: Config, kind: str) -> Relative:
    """Return the RoPE of a kind of layer, or no positions if its table is null."""
    if kind in tables.nulls:
        return NoRelative()
    if not tables.has(kind):
        raise UserError(f"{config.source}: rope_parameters has no table {kind!r}; give one, or null for no positions")
    length = config.integer("max_position_embeddings")
    keys = {"rope_parameters": tables.table(kind).values, "max_position_embeddings": length}
    return rope_of(Config(keys, f"{config.source}: {kind}"))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    keys = gated.config_of(
        gated.with_rope(spec)[0], lambda attention, _: {"attention_bias": attention.bias}, rope=False
    )
    if keys is None:
        return None
    masks, tables = gated.masks_config(spec), dict[str, Any]()
    for kind, block in zip(masks["layer_types"], spec.layers, strict=True):
        match block.branches[0]:
            case Attention(relative=Rope() as rope):
                tables[kind] = rope_table(rope)
                if tables[kind] is None:
                    return None
            case _:
                tables[kind] = None
    window = masks["sliding_window"] or spec.context_length  # transformers requires a window, even if no layer has one
    return {**keys, "rope_parameters": tables, "layer_types": masks["layer_types"], "sliding_window": window}


COMPASS = Family(
    name="Cohere Compass",
    base="Cohere 2",
    model_types=("cohere_compass_text",),
    architectures={"CohereCompassForCausalLM": scaled_language_model(True, "logit_scale", 1.0)},
    spec=spec,
    config=config,
    names=(NameRule("blocks.{layer}.norm.*", "model.layers.{layer}.input_layernorm.*"), *gated.NAMES),
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={**HEAD_KEYS, "pooling": "part of a head that this architecture lacks"},
    defaults={**cohere.SIZES, "sliding_window": 4096},
    typical={"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 10_000.0} for kind in KINDS}},
)

register(COMPASS)
