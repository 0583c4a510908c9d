"""Qwen3-Next (Qwen team 2025) and the sparse Qwen3.5 (2026): Qwen3.5's mixers, experts, and a gated shared expert."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import experts
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.common.hybrid import first_mixer
from qkv.interop.families.decoders.hybrid import qwen3_5
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV
from qkv.interop.mapping.divisions import RowDivision
from qkv.interop.mapping.family import Family, Reasons
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.mixers.matrix_state import GatedDelta
from qkv.spec.model import Model

_FIELDS = {
    "num_experts": "num_experts",
    "top_k": "num_experts_per_tok",
    "hidden": "moe_intermediate_size",
    "shared_hidden": "shared_expert_intermediate_size",
}
_SHARED = {"num_shared": 1, "shared_gate": True}
_NEXT = experts.ExpertKeys({**_FIELDS, "normalised": "norm_topk_prob"}, _SHARED, experts.BY_STEP)
_SPARSE = experts.ExpertKeys(_FIELDS, {**_SHARED, "normalised": True})


def spec_of_next(config: Config, head: Head) -> Model:
    """Build the spec of Qwen3-Next.

    Every ``decoder_sparse_step``-th layer has experts, except layers in ``mlp_only_layers``.
    """
    return _NEXT.spec(config, qwen3_5.spec(config, head))


def spec_of_sparse(config: Config, head: Head) -> Model:
    """Build the spec of the sparse Qwen3.5: all layers have experts, whose weights sum to 1."""
    return _SPARSE.spec(config, qwen3_5.spec(config, head))


def config_of_next(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    return _NEXT.config(spec, qwen3_5.config)


def config_of_sparse(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if it is not a sparse Qwen3.5. Callers read them back to verify."""
    keys = _SPARSE.config(spec, qwen3_5.config)
    return None if keys is None else {key: value for key, value in keys.items() if key != "intermediate_size"}


def divisions(spec: Model) -> tuple[RowDivision, ...]:
    """Return how rows of Qwen3-Next's tensors are divided: by attention head, and by key head of the delta rule."""
    delta, gates = first_mixer(spec, GatedDelta), qwen3_5.gate_division(spec)
    if delta is None:
        return gates
    head_dim, value_dim = delta.dims(spec.width)
    shared = delta.num_heads // delta.key_heads
    sizes = {"queries": head_dim, "keys": head_dim, "values": shared * value_dim, "gate": shared * value_dim}
    prefix = "model.layers.{layer}.linear_attn.in_proj_"
    return (
        *gates,
        RowDivision(f"{prefix}qkvz.weight", sizes),
        RowDivision(f"{prefix}ba.weight", {"strength": shared, "forgetting": shared}),
    )


EXPERT_NAMES = experts.names(experts.MLP, shared="shared_expert")
_BODY, _DELTA = "blocks.{layer}.branches.0.body.", "model.layers.{layer}.linear_attn.in_proj_"
NEXT_NAMES = (
    NameRule(
        f"{_BODY}qkv.weight",
        (f"{_DELTA}qkvz.weight[queries]", f"{_DELTA}qkvz.weight[keys]", f"{_DELTA}qkvz.weight[values]"),
        QKV,
        of="gated_delta",
    ),
    NameRule(f"{_BODY}gate.weight", f"{_DELTA}qkvz.weight[gate]", of="gated_delta"),
    NameRule(f"{_BODY}strength.weight", f"{_DELTA}ba.weight[strength]", of="gated_delta"),
    NameRule(f"{_BODY}forgetting.weight", f"{_DELTA}ba.weight[forgetting]", of="gated_delta"),
)
"""Name table of the projections of the delta rule in Qwen3-Next, which are in two tensors."""
_DEFAULTS = {
    **qwen3_5.DEFAULTS,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
_IGNORED_CONFIG: Reasons = {
    **HEAD_KEYS,
    **experts.IGNORED_CONFIG,
    "mtp_num_hidden_layers": "multi-token prediction",
}

QWEN3_NEXT = Family(
    name="Qwen3-Next",
    base="Qwen3",
    model_types=("qwen3_next",),
    architectures={"Qwen3NextForCausalLM": language_model(tied=False), **of_decoder("Qwen3Next")},
    spec=spec_of_next,
    config=config_of_next,
    names=(*NEXT_NAMES, *EXPERT_NAMES, *qwen3_5.MIXER_NAMES),
    prefix="model.",
    divisions=divisions,
    ignored=qwen3_5.IGNORED,
    ignored_config=_IGNORED_CONFIG,
    defaults={
        **_DEFAULTS,
        "vocab_size": 151936,
        "num_hidden_layers": 48,
        "num_experts_per_tok": 10,
        "num_experts": 512,
    },
)
QWEN3_5_MOE = Family(
    name="Qwen3.5-MoE",
    base="Qwen3-Next",
    model_types=("qwen3_5_moe_text",),
    architectures={"Qwen3_5MoeForCausalLM": language_model(tied=False)},
    spec=spec_of_sparse,
    config=config_of_sparse,
    names=(*EXPERT_NAMES, *qwen3_5.NAMES),
    prefix="model.",
    divisions=qwen3_5.gate_division,
    ignored=qwen3_5.IGNORED,
    ignored_config=_IGNORED_CONFIG,
    older={"model.language_model.": "model."},
    defaults={
        **_DEFAULTS,
        "vocab_size": 248320,
        "num_hidden_layers": 40,
        "num_experts_per_tok": 8,
        "num_experts": 256,
    },
)

register(QWEN3_NEXT, QWEN3_5_MOE)
