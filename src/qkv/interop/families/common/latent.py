"""Multi-head latent attention in published configs (DeepSeek-V2, 2024): config keys and tensor names.

The two features of a RoPE pair are adjacent in the published tensors.
"""

from __future__ import annotations

import math
from typing import Any

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.rope import rope_config, rope_of, table_of, yarn_scale
from qkv.interop.families.common.shape import shortest
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import INTERLEAVED, Inverse, RotaryPairs, Way
from qkv.interop.mapping.names import NameRule
from qkv.spec.branches import GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.mixers.latent_attention import LatentAttention
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import NoPositions, RMSNorm, Rope, RopeScaling, YarnScaling
from qkv.system.errors import UserError

_OURS, _THEIRS = "blocks.{layer}.branches.0.body.", "model.layers.{layer}.self_attn."
_NORM = RMSNorm(eps=1e-6)
"""Norm of the compressed vectors; the published code has this constant epsilon."""


def attention_of(config: Config) -> LatentAttention:
    """Build the attention spec of a config.

    ``q_lora_rank`` null: queries are projected directly from x. With a scaling of RoPE, ``mscale_all_dim`` m multiplies
    the scores by (0.1 m ln(factor) + 1)². Raises ``UserError`` for biases and for shared key/value heads.
    """
    config.fixed("attention_bias", False, "biases of attention's linear maps")
    heads = config.size("num_attention_heads")
    if config.integer("num_key_value_heads", heads) != heads:
        raise UserError(
            f"{config.source}: num_key_value_heads is {config.integer('num_key_value_heads')}, but latent attention "
            f"has as many as num_attention_heads, which is {heads}"
        )
    rope = rope_of(config)
    return LatentAttention(
        num_heads=heads,
        kv_rank=config.size("kv_lora_rank"),
        query_rank=config.size("q_lora_rank") if config.has("q_lora_rank") else None,
        head_dim=config.size("qk_nope_head_dim"),
        rope_dim=config.size("qk_rope_head_dim"),
        value_dim=config.size("v_head_dim"),
        base=rope.base,
        scaling=rope.scaling,
        norm=_NORM,
        temperature=_temperature(table_of(config).number("mscale_all_dim", 0.0), rope.scaling),
        dropout=config.number("attention_dropout", 0.0),
    )


def _factor(scaling: RopeScaling | None) -> float:
    return getattr(scaling, "factor", 1.0)


def _temperature(share: float, scaling: RopeScaling | None) -> float:
    return yarn_scale(_factor(scaling), share) ** -2 if share else 1.0


def model_of(config: Config, head: Head) -> Model:
    """Build the spec of a model with latent attention and a gated feed-forward in every layer."""
    norm = RMSNorm(eps=config.number("rms_norm_eps", 1e-6))
    network = GatedFeedForward(
        hidden=config.size("intermediate_size"), activation=config.word("hidden_act", "silu", INWARD)
    )
    return Model(
        width=config.size("hidden_size"),
        num_layers=config.layers("num_hidden_layers"),
        context_length=config.integer("max_position_embeddings", 2048),
        frontend=Text(vocab_size=config.size("vocab_size"), positions=NoPositions()),
        blocks=(Block(branches=(attention_of(config), network), norm=norm),),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def interleaved_model_of(config: Config, head: Head) -> Model:
    """Build the spec as ``model_of``, for families that have the key ``rope_interleave``.

    Raises ``UserError`` if it is false, which means that the features of a RoPE pair are not adjacent.
    """
    config.fixed("rope_interleave", True, "which features are the pairs of RoPE")
    return model_of(config, head)


def config_of(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys of ``spec``, the inverse of ``model_of``; None if its structure differs.

    Callers read them back to verify.
    """
    match spec.layers[:1], spec.frontend:
        case (
            (Block(branches=(LatentAttention() as attention, GatedFeedForward() as network), norm=RMSNorm() as norm),),
            Text() as text,
        ):
            turned = _rope_keys(attention)
        case _:
            return None
    if turned is None:
        return None
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers),
        "max_position_embeddings": spec.context_length,
        "vocab_size": text.vocab_size,
        "initializer_range": spec.init_std,
        "intermediate_size": network.hidden_at(spec.width),
        "hidden_act": OUTWARD[network.activation],
        "rms_norm_eps": norm.eps,
        **_attention_keys(attention, spec.width),
        **turned,
    }


def _attention_keys(attention: LatentAttention, width: int) -> dict[str, Any]:
    head_dim, rope_dim, value_dim = attention.dims(width)
    return {
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_heads,
        "kv_lora_rank": attention.rank(width),
        "q_lora_rank": attention.query_rank,
        "qk_nope_head_dim": head_dim,
        "qk_rope_head_dim": rope_dim,
        "v_head_dim": value_dim,
        "attention_dropout": attention.dropout,
    }


def _rope_keys(attention: LatentAttention) -> dict[str, Any] | None:
    """Return the config keys of RoPE and of the scale of the scores; None if configs cannot express them."""
    keys, scaling = rope_config(Rope(base=attention.base, scaling=attention.scaling)), attention.scaling
    if keys is None or attention.temperature == 1.0:
        return keys
    if _factor(scaling) <= 1.0:
        return None
    share = (attention.temperature**-0.5 - 1) / (0.1 * math.log(_factor(scaling)))
    share = shortest(share, lambda number: _temperature(number, scaling) == attention.temperature)
    table = {**keys["rope_scaling"], "mscale_all_dim": share}
    if isinstance(scaling, YarnScaling) and scaling.magnitude == 1.0:  # as published; some libraries require it
        table["mscale"] = share
    return {**keys, "rope_scaling": table}


def _turned(spec: Model, before: int) -> Way:
    """Return the conversion of rows in which ``before`` features of a head precede the rotated ones."""
    return Inverse(RotaryPairs(_first(spec).dims(spec.width)[1], before))


def _first(spec: Model) -> LatentAttention:
    attention = spec.layers[0].branches[0]
    assert isinstance(attention, LatentAttention)
    return attention


def _queries(spec: Model) -> Way:
    return _turned(spec, _first(spec).dims(spec.width)[0])


def _compressed(spec: Model) -> bool:
    return _first(spec).query_rank is not None


NAMES = (
    NameRule(_OURS + "query_down.weight", _THEIRS + "q_a_proj.weight"),
    NameRule(_OURS + "query_norm.weight", _THEIRS + "q_a_layernorm.weight"),
    NameRule(_OURS + "query.weight", _THEIRS + "q_b_proj.weight", _queries, _compressed),
    NameRule(_OURS + "query.weight", _THEIRS + "q_proj.weight", _queries),
    NameRule(
        _OURS + "down.weight",
        _THEIRS + "kv_a_proj_with_mqa.weight",
        lambda spec: _turned(spec, _first(spec).rank(spec.width)),
    ),
    NameRule(_OURS + "down_norm.weight", _THEIRS + "kv_a_layernorm.weight"),
    NameRule(_OURS + "up.weight", _THEIRS + "kv_b_proj.weight", INTERLEAVED),
)
"""Name table of latent attention; the names of Llama-like families come after it."""
IN_HALVES = (
    NameRule(_OURS + "query.weight", _THEIRS + "q_b_proj.weight", where=_compressed),
    NameRule(_OURS + "query.weight", _THEIRS + "q_proj.weight"),
    NameRule(_OURS + "down.weight", _THEIRS + "kv_a_proj_with_mqa.weight"),
)
"""Rows for published tensors in which the features i and i + Dr/2 are a RoPE pair; they precede ``NAMES``."""
