"""Hunyuan (Tencent 2025): Llama's blocks with norms of queries and keys after their rotation.

The larger models have experts in every layer, and a shared one.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.common.rope import rope_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.parts import NTKScaling, Rope

_ATTENTION = "model.layers.{layer}.self_attn."
NAMES = (
    NameRule("blocks.{layer}.branches.0.body.query_norm.weight", f"{_ATTENTION}query_layernorm.weight"),
    NameRule("blocks.{layer}.branches.0.body.key_norm.weight", f"{_ATTENTION}key_layernorm.weight"),
    *gated.NAMES,
)

_EXPERTS = experts.ExpertKeys(
    {"num_experts": "num_experts", "top_k": "moe_topk", "hidden": "intermediate_size"},
    {"normalised": True, "num_shared": 1},
)


def spec_of_dense(config: Config, head: Head) -> Model:
    """Build the spec of Hunyuan: ``attention_bias`` adds biases.

    With ``alpha``, "dynamic" RoPE means NTK-aware scaling by that factor, at any length.
    """
    attention = gated.attention_of(
        config,
        bias=config.flag("attention_bias", False),
        relative=_rope(config),
        qk_norm=gated.norm_of(config),
        qk_norm_after="rotation",
    )
    return gated.model_of(config, head, [attention] * config.layers("num_hidden_layers"))


def _rope(config: Config) -> Rope:
    """Build the RoPE of a config; "dynamic" with the key ``alpha`` means a constant factor of the base."""
    table = config.table("rope_scaling") if config.table("rope_scaling").values else config.table("rope_parameters")
    alpha = table.number("alpha", 0.0)
    if not alpha or table.word("rope_type", table.word("type", "default")) != "dynamic":
        return rope_of(config)
    for key in ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"):  # without effect beside alpha
        table.has(key)
    base = table.number("rope_theta", config.number("rope_theta", 10000.0))
    return Rope(base=base, scaling=NTKScaling(factor=alpha) if alpha != 1 else None)


def config_of_dense(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    first = spec.layers[0].branches[0] if spec.layers else None
    match first:
        case Attention(relative=Rope(scaling=NTKScaling(factor=alpha)) as rope):
            turned = {"rope_theta": rope.base, "rope_scaling": {"rope_type": "dynamic", "alpha": alpha, "factor": 1.0}}
        case _:
            turned = {}
    keys = gated.config_of(spec, lambda attention, _: {"attention_bias": attention.bias}, rope=not turned)
    return None if keys is None else {**keys, **turned}


def spec_of_experts(config: Config, head: Head) -> Model:
    """Build the spec of Hunyuan with experts: the shared expert is as large as one of the others.

    Raises ``UserError`` if the number of experts, or of those chosen, is given per layer.
    """
    return _EXPERTS.spec(config, spec_of_dense(config, head))


def config_of_experts(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    return _EXPERTS.config(spec, config_of_dense)


_SIZES = {
    "vocab_size": 290943,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-5,
}
_IGNORED_CONFIG: Reasons = {
    **HEAD_KEYS,
    **dict.fromkeys(("eod_token_id", "sep_token_id"), "given by the tokenizer"),
    "use_qk_norm": "fixed by the family",
}

HUNYUAN = Family(
    name="Hunyuan",
    model_types=("hunyuan_v1_dense",),
    architectures={
        "HunYuanDenseV1ForCausalLM": language_model(tied=False),
        **of_decoder("HunYuanDenseV1", tags=None, question_answering=False),
    },
    spec=spec_of_dense,
    config=config_of_dense,
    names=NAMES,
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config=_IGNORED_CONFIG,
    defaults=_SIZES,
    base="Llama",
)

HUNYUAN_MOE = Family(
    name="Hunyuan with experts",
    model_types=("hunyuan_v1_moe",),
    architectures={
        "HunYuanMoEV1ForCausalLM": language_model(tied=False),
        **of_decoder("HunYuanMoEV1", tags=None, question_answering=False),
    },
    spec=spec_of_experts,
    config=config_of_experts,
    names=(*experts.names(experts.MLP, router="gate.wg", shared="shared_mlp"), *NAMES),
    prefix="model.",
    ignored=gated.IGNORED,
    ignored_config={**_IGNORED_CONFIG, **experts.IGNORED_CONFIG},
    synonyms={"num_experts_per_tok": "moe_topk", "num_local_experts": "num_experts"},
    defaults={**_SIZES, "num_experts": 1, "moe_topk": 1},
)

register(HUNYUAN, HUNYUAN_MOE)
