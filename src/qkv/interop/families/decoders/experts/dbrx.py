"""DBRX (Databricks 2024): clipped queries, keys and values, layer norms without bias, and experts in every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qkv.interop.families.common import experts
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import HEAD_KEYS, language_model
from qkv.interop.families.common.rope import rope_config, rope_of
from qkv.interop.families.common.shape import shape_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, TRANSPOSED
from qkv.interop.mapping.divisions import RowDivision
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import LayerNorm, NoPositions, Rope
from qkv.spec.position_wise.experts import MixtureOfExperts
from qkv.system.errors import UserError

_NORM = LayerNorm(eps=1e-5, bias=False)
_WIDTH_OF_WEIGHTS = "moe_normalize_expert_weights"


def spec(config: Config, head: Head) -> Model:
    """Build the spec of DBRX from its nested configs, ``attn_config`` and ``ffn_config``."""
    return Model(
        width=config.size("hidden_size"),
        num_layers=config.layers("num_hidden_layers"),
        context_length=config.integer("max_position_embeddings"),
        frontend=Text(
            vocab_size=config.size("vocab_size"),
            positions=NoPositions(),
            dropout=config.number("emb_pdrop", 0.0),
        ),
        blocks=(
            Block(
                branches=(_attention(config), _experts(config.table("ffn_config"))),
                norm=_NORM,
                dropout=config.number("resid_pdrop", 0.0),
            ),
        ),
        norm=_NORM,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def _attention(config: Config) -> Attention:
    """Build the attention. Raises ``UserError`` if ``rope_theta`` differs between the config and ``attn_config``."""
    table, rope = config.table("attn_config"), rope_of(config)
    base = table.number("rope_theta", rope.base)
    if base != rope.base:
        raise UserError(
            f"{config.source}: rope_theta is {base:g} in attn_config and {rope.base:g} outside of it, which libraries "
            "read differently; set both to the base that the model was trained with"
        )
    return Attention(
        num_heads=config.size("num_attention_heads"),
        num_kv_heads=table.size("kv_n_heads", 1),
        relative=rope,
        bias=False,
        dropout=table.number("attn_pdrop", 0.0),
        clip=table.number("clip_qkv", 0.0) or None,
    )


def _experts(table: Config) -> MixtureOfExperts:
    power = table.optional(_WIDTH_OF_WEIGHTS, 1.0)
    if power not in (None, 1.0):
        raise UserError(f"{table.source}: {_WIDTH_OF_WEIGHTS} is {power:g}, but qkv supports only 1 or null")
    return MixtureOfExperts(
        num_experts=table.size("moe_num_experts", 4),
        top_k=table.integer("moe_top_k", 1),
        hidden=table.size("ffn_hidden_size", 3584),
        activation=table.table("ffn_act_fn").word("name", "silu", INWARD),
        normalised=power is not None,
    )


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not DBRX's. Callers read them back to verify."""
    match shape_of(spec):
        case Block(branches=(Attention(relative=Rope() as rope) as attention, MixtureOfExperts() as part)) as block, (
            Text() as text
        ):
            turned = rope_config(rope)
        case _:
            return None
    if turned is None:
        return None
    return {
        "d_model": spec.width,
        "n_layers": len(spec.layers),
        "n_heads": attention.num_heads,
        "max_seq_len": spec.context_length,
        "vocab_size": text.vocab_size,
        "emb_pdrop": text.dropout,
        "resid_pdrop": block.dropout,
        "initializer_range": spec.init_std,
        "attn_config": {
            "kv_n_heads": attention.kv_heads,
            "clip_qkv": attention.clip,
            "attn_pdrop": attention.dropout,
            "rope_theta": rope.base,
        },
        "ffn_config": {
            "moe_num_experts": part.num_experts,
            "moe_top_k": part.top_k,
            "ffn_hidden_size": part.canonical(spec.width).hidden,
            "ffn_act_fn": {"name": OUTWARD[part.activation]},
            _WIDTH_OF_WEIGHTS: 1.0 if part.normalises else None,
        },
        **turned,
    }


def divisions(spec: Model) -> Sequence[RowDivision]:
    """Return how the rows of the experts' tensors are divided: each expert has as many as it has hidden features."""
    part = spec.layers[0].branches[1]
    assert isinstance(part, MixtureOfExperts)
    size = part.canonical(spec.width).hidden or 0
    return (RowDivision(f"{_MLP}*", {f"expert{i}": size for i in range(part.num_experts)}),)


_OURS, _LAYER = "blocks.{layer}.branches.", "transformer.blocks.{layer}."
_ATTENTION, _MLP = f"{_LAYER}norm_attn_norm.", f"{_LAYER}ffn.experts.mlp."
_ONE = "[expert{expert}]"
DBRX = Family(
    name="DBRX",
    model_types=("dbrx",),
    architectures={"DbrxForCausalLM": language_model(tied=False)},
    spec=spec,
    config=config,
    names=(
        NameRule("frontend.table", "transformer.wte.weight"),
        NameRule(f"{_OURS}0.norm.weight", f"{_ATTENTION}norm_1.weight"),
        NameRule(f"{_OURS}0.body.qkv.weight", f"{_ATTENTION}attn.Wqkv.weight"),
        NameRule(f"{_OURS}0.body.output.weight", f"{_ATTENTION}attn.out_proj.weight"),
        NameRule(f"{_OURS}1.norm.weight", f"{_ATTENTION}norm_2.weight"),
        NameRule(f"{experts.OURS}experts.{{expert}}.gate_up.weight", (f"{_MLP}w1{_ONE}", f"{_MLP}v1{_ONE}"), PAIR),
        NameRule(f"{experts.OURS}experts.{{expert}}.down.weight", f"{_MLP}w2{_ONE}", TRANSPOSED),
        NameRule(f"{experts.OURS}router.weight", f"{_LAYER}ffn.router.layer.weight"),
        NameRule("norm.weight", "transformer.norm_f.weight"),
    ),
    prefix="transformer.",
    ignored_config={**HEAD_KEYS, **experts.IGNORED_CONFIG},
    divisions=divisions,
    synonyms={
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
        "max_seq_len": "max_position_embeddings",
    },
    defaults={
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "max_position_embeddings": 2048,
        "vocab_size": 32000,
    },
)

register(DBRX)
