"""Jamba (AI21 2024): Mamba, and attention without positions in some layers, with experts in every other layer.

Mamba normalises the vectors that steps, b and c are computed from, by norms with weights.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.experts import ExpertKeys, SparseLayers
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.families.common.hybrid import config_of, first_mixer, of_kinds
from qkv.interop.families.decoders.hybrid.mamba import mamba_names
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Branch
from qkv.spec.heads import Head
from qkv.spec.mixers.mamba import Mamba
from qkv.spec.model import Model
from qkv.spec.parts import NoRelative
from qkv.system.errors import UserError

KINDS = {"attention": "attention", "mamba": "mamba"}


def _every(config: Config, stem: str) -> list[bool]:
    """Return which layers i have i mod ``stem``_period = ``stem``_offset."""
    period, offset = config.integer(f"{stem}_period"), config.integer(f"{stem}_offset")
    if not 0 <= offset < period:
        raise UserError(
            f"{config.source}: {stem}_offset is {offset}, but it should be at least 0 and less than {stem}_period, "
            f"which is {period}"
        )
    return [i % period == offset for i in range(config.layers("num_hidden_layers"))]


def _period_keys(stem: str, chosen: list[bool]) -> dict[str, Any] | None:
    """Return the config keys of the layers that are ``chosen``, the inverse of ``_every``; None if there are none."""
    for period in range(1, len(chosen) + 1):
        for offset in range(period):
            if chosen == [i % period == offset for i in range(len(chosen))]:
                return {f"{stem}_period": period, f"{stem}_offset": offset}
    none = {f"{stem}_period": len(chosen) + 1, f"{stem}_offset": len(chosen)}
    return None if any(chosen) else none


def _sparse(config: Config) -> list[bool]:
    several = config.integer("num_experts") > 1
    return [several and one for one in _every(config, "expert_layer")]


_SPARSE = ExpertKeys(
    {"num_experts": "num_experts", "top_k": "num_experts_per_tok", "hidden": "intermediate_size"},
    {"normalised": False},
    SparseLayers(_sparse, lambda sparse: _period_keys("expert_layer", list(sparse)) or {}),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Jamba."""
    config.word("hidden_act", "silu", {"silu": "silu"})
    attention = gated.attention_of(config, relative=NoRelative())
    parts: dict[str, Branch] = {"attention": attention, "mamba": _mamba(config)}
    kinds = ["attention" if one else "mamba" for one in _every(config, "attn_layer")]
    model = gated.model_of(config, head, of_kinds(config, kinds, parts))
    return _SPARSE.spec(config, model) if any(_sparse(config)) else model


def _mamba(config: Config) -> Mamba:
    rank = None
    if config.has("mamba_dt_rank") and config.values.get("mamba_dt_rank", "auto") != "auto":
        rank = config.size("mamba_dt_rank")
    return Mamba(
        expansion=config.size("mamba_expand"),
        state_size=config.size("mamba_d_state"),
        step_rank=rank,
        kernel_size=config.size("mamba_d_conv"),
        bias=config.flag("mamba_proj_bias", False),
        convolution_bias=config.flag("mamba_conv_bias", True),
        norm=gated.norm_of(config),
    )


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Jamba's. Callers read them back to verify."""
    sparse = any(branch.kind == "mixture_of_experts" for block in spec.layers for branch in block.branches)
    keys = _SPARSE.config(spec, _dense_config) if sparse else _dense_config(spec)
    return keys if keys is None or sparse else {**keys, "num_experts": 1}


def _dense_config(spec: Model) -> dict[str, Any] | None:
    mamba = first_mixer(spec, Mamba)
    shared = config_of(spec, lambda attention, feed_forward: {}, lambda branch: KINDS.get(branch.kind, ""), rope=False)
    if shared is None or mamba is None:
        return None
    attends = _period_keys("attn_layer", [kind == "attention" for kind in shared.pop("layer_types")])
    inner = mamba.inner(spec.width)
    if attends is None or inner % spec.width:
        return None
    shared.pop("head_dim")
    return {
        **shared,
        **attends,
        "mamba_expand": inner // spec.width,
        "mamba_d_state": mamba.state_size,
        "mamba_dt_rank": mamba.rank_at(spec.width),
        "mamba_d_conv": mamba.kernel_size,
        "mamba_proj_bias": mamba.bias,
        "mamba_conv_bias": mamba.convolution_bias,
    }


_OURS, _LAYER = "blocks.{layer}.branches.", "model.layers.{layer}."
_FEED_FORWARD, _MAMBA = f"{_LAYER}feed_forward.", f"{_LAYER}mamba."
NAMES = (
    *(
        NameRule(f"{_OURS}0.body.norms.{i}.weight", f"{_MAMBA}{name}_layernorm.weight")
        for i, name in enumerate(("dt", "b", "c"))
    ),
    *mamba_names(_MAMBA),
    *experts.names(_FEED_FORWARD[:-1], router="router"),
    NameRule(f"{_OURS}1.norm.weight", f"{_LAYER}pre_ff_layernorm.weight"),
    NameRule(f"{_OURS}1.body.gate_up.*", (f"{_FEED_FORWARD}gate_proj.*", f"{_FEED_FORWARD}up_proj.*"), PAIR),
    NameRule(f"{_OURS}1.body.down.*", f"{_FEED_FORWARD}down_proj.*"),
    NameRule("norm.weight", "model.final_layernorm.weight"),
    *gated.NAMES,
)

JAMBA = Family(
    name="Jamba",
    base="Mamba",
    model_types=("jamba",),
    architectures={"JambaForCausalLM": language_model(tied=False)},
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored_config={
        **HEAD_KEYS,
        **experts.IGNORED_CONFIG,
        **dict.fromkeys(("use_mamba_kernels", "use_mambapy", "use_associative_scan"), "execution setting"),
        "num_logits_to_keep": "output format of a call",
        **dict.fromkeys(("layer_types", "layers_block_type"), "given by attn_layer_period and attn_layer_offset"),
    },
    synonyms={"num_local_experts": "num_experts"},
    defaults={
        "vocab_size": 65536,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 262144,
        "num_experts_per_tok": 2,
        "num_experts": 16,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
    },
    typical={"expert_layer_period": 2, "expert_layer_offset": 1, "attn_layer_period": 8, "attn_layer_offset": 4},
)

register(JAMBA)
