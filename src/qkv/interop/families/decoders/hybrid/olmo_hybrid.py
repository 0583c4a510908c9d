"""OLMo Hybrid (Allen Institute for AI 2026): the gated delta rule, and attention in every fourth layer.

Layers with the delta rule have norms before their branches; layers with attention have norms of the branches' outputs,
and of queries and keys over all heads, as in OLMo 3. Without a base of RoPE, attention has no positions.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.families.common.hybrid import config_of, delta_config, first_mixer, kinds_of, of_kinds
from qkv.interop.families.common.rope import rope_of, rope_table
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV, JoinedTaps, Way
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, Branch
from qkv.spec.heads import Head
from qkv.spec.mixers.matrix_state import GatedDelta
from qkv.spec.model import Model
from qkv.spec.parts import NoRelative, Relative, Rope

FULL, LINEAR = "full_attention", "linear_attention"
KINDS = {"attention": FULL, "gated_delta": LINEAR}
"""Kinds of mixers -> kinds of layers in configs."""
ORDERS = {FULL: "res_post", LINEAR: "pre"}
"""Kinds of layers -> order of their blocks."""


def spec(config: Config, head: Head) -> Model:
    """Build the spec of OLMo Hybrid; ``attention_bias`` adds biases to attention."""
    norm, layers = gated.norm_of(config), config.layers("num_hidden_layers")
    config.word("hidden_act", "silu", {"silu": "silu"})
    attention = gated.attention_of(
        config,
        bias=config.flag("attention_bias", False),
        head_dim=None,
        relative=_relative(config),
        qk_norm=norm,
        qk_norm_over="all_heads",
    )
    usual = [LINEAR if i % 4 != 3 else FULL for i in range(layers)]
    kinds = kinds_of(config, usual if FULL in usual else [*usual[:-1], FULL])
    parts: dict[str, Branch] = {FULL: attention, LINEAR: _delta(config)}
    model = gated.model_of(config, head, of_kinds(config, kinds, parts))
    blocks = tuple(block.changed(order=ORDERS[KINDS[block.branches[0].kind]]) for block in model.blocks)
    return model.changed(blocks=blocks)


def _relative(config: Config) -> Relative:
    """Return RoPE, or no positions if the base is null."""
    table = config.table("rope_parameters")
    absent = "rope_theta" in table.nulls or ("rope_theta" in config.nulls and not table.has("rope_theta"))
    return NoRelative() if absent else rope_of(config)


def _delta(config: Config) -> GatedDelta:
    """Build the gated delta rule; by default all heads together have 3/4 of the width as features of keys."""
    heads = config.size("num_attention_heads")
    key_heads = config.size("linear_num_key_heads", heads)
    head_dim = config.size("linear_key_head_dim", int(0.75 * config.size("hidden_size") / key_heads))
    return GatedDelta(
        num_heads=config.size("linear_num_value_heads", heads),
        num_key_heads=key_heads,
        head_dim=head_dim,
        value_dim=config.size("linear_value_head_dim", 2 * head_dim),
        max_strength=2.0 if config.flag("linear_allow_neg_eigval", True) else 1.0,
        kernel_size=config.size("linear_conv_kernel_dim", 4),
        convolution_bias=False,
        eps=1e-5,
    )


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    attention, delta = first_mixer(spec, Attention), first_mixer(spec, GatedDelta)
    shared = config_of(
        spec,
        lambda attention, feed_forward: {"attention_bias": attention.bias},
        lambda branch: KINDS.get(branch.kind, ""),
        rope=False,
    )
    if shared is None or attention is None or delta is None:
        return None
    shared.pop("head_dim")  # fixed by the family
    table = rope_table(attention.relative) if isinstance(attention.relative, Rope) else {"rope_theta": None}
    if table is None:
        return None
    return {
        **shared,
        **delta_config(spec),
        "linear_allow_neg_eigval": delta.max_strength == 2,
        "rope_parameters": table,
        "pad_token_id": None,  # the library's default id exceeds a small vocabulary
    }


def convolutions_of(spec: Model) -> Way:
    """Return the conversion of the convolutions of queries, keys and values, which are one in qkv."""
    delta = first_mixer(spec, GatedDelta)
    assert delta is not None
    head_dim, value_dim = delta.dims(spec.width)
    return JoinedTaps((delta.key_heads * head_dim,) * 2 + (delta.num_heads * value_dim,))


_OURS, _LAYER = "blocks.{layer}.branches.", "model.layers.{layer}."
_DELTA, _CONVOLUTIONS = f"{_LAYER}linear_attn.", tuple(f"{_LAYER}linear_attn.{x}_conv1d.weight" for x in "qkv")
_BODY, _KIND = f"{_OURS}0.body.", "gated_delta"
NAMES = (
    NameRule(f"{_OURS}0.norm.weight", f"{_LAYER}input_layernorm.weight", of=_KIND),
    NameRule(f"{_OURS}1.norm.weight", f"{_LAYER}post_attention_layernorm.weight", of=_KIND),
    *gated.OUTPUT_NORMS,
    NameRule(f"{_BODY}qkv.weight", tuple(f"{_DELTA}{x}_proj.weight" for x in "qkv"), QKV, of=_KIND),
    NameRule(f"{_BODY}convolution.weight", _CONVOLUTIONS, convolutions_of, of=_KIND),
    NameRule(f"{_BODY}strength.weight", f"{_DELTA}b_proj.weight", of=_KIND),
    NameRule(f"{_BODY}forgetting.weight", f"{_DELTA}a_proj.weight", of=_KIND),
    NameRule(f"{_BODY}step_bias", f"{_DELTA}dt_bias", of=_KIND),
    NameRule(f"{_BODY}log_rate", f"{_DELTA}A_log", of=_KIND),
    NameRule(f"{_BODY}gate.weight", f"{_DELTA}g_proj.weight", of=_KIND),
    NameRule(f"{_BODY}scale", f"{_DELTA}o_norm.weight", of=_KIND),
    NameRule(f"{_BODY}output.weight", f"{_DELTA}o_proj.weight", of=_KIND),
    *gated.NAMES,
)

OLMO_HYBRID = Family(
    name="OLMo Hybrid",
    base="OLMo 3",
    model_types=("olmo_hybrid",),
    architectures={"OlmoHybridForCausalLM": language_model(tied=False)},
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    older={"attention_layer_norm": "input_layernorm", "feedforward_layer_norm": "post_attention_layernorm"},
    ignored_config={
        **HEAD_KEYS,
        **dict.fromkeys(
            (
                "linear_a_log_min",
                "linear_a_log_max",
                "linear_dt_min",
                "linear_dt_max",
                "linear_dt_init_floor",
            ),
            "first weights",
        ),
    },
    defaults={
        "vocab_size": 100352,
        "hidden_size": 3840,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 30,
        "max_position_embeddings": 65536,
        "rms_norm_eps": 1e-6,
    },
)

register(OLMO_HYBRID)
