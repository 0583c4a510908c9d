"""Granite with experts (IBM 2024, 2025): Granite's constant factors, and experts in every layer.

"granitemoeshared" may have a network for all positions beside the experts, and "granitemoe_swa" the attention of
"granite_swa", too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qkv.interop.families.common import experts, gated
from qkv.interop.families.common.heads import HEAD_KEYS, scaled_language_model
from qkv.interop.families.decoders.multipliers import granite
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model

_SHARED = "shared_intermediate_size"
_ALONE = experts.ExpertKeys(
    {"num_experts": "num_local_experts", "top_k": "num_experts_per_tok", "hidden": "intermediate_size"},
    {"normalised": True},
)
_BESIDE = experts.ExpertKeys({**_ALONE.keys, "shared_hidden": _SHARED}, {"normalised": True, "num_shared": 1})


def _spec(dense: Callable[[Config, Head], Model], shares: bool = True) -> Callable[[Config, Head], Model]:
    """Return the function that builds the spec of a Granite with experts, from that of the Granite without.

    ``shares``: the family reads ``shared_intermediate_size``, where 0 means no network for all positions.
    """

    def spec(config: Config, head: Head) -> Model:
        keys = _BESIDE if shares and config.integer(_SHARED, 0) else _ALONE
        return keys.spec(config, dense(config, head))

    return spec


def _config(
    dense: Callable[[Model], dict[str, Any] | None], shares: bool = True
) -> Callable[[Model], dict[str, Any] | None]:
    """Return the inverse of what ``_spec`` returns."""

    def config(spec: Model) -> dict[str, Any] | None:
        keys = (_BESIDE if shares else _ALONE).config(spec, dense)
        if keys is None:
            return None
        written = {key: value for key, value in keys.items() if key != "mlp_bias"}
        return {**written, _SHARED: keys[_SHARED] or 0} if shares else written

    return config


_LAYER = "model.layers.{layer}."


def _names(gate_up: str, down: str, router: str) -> tuple[NameRule, ...]:
    """Return the name table of a Granite's experts, from the published names of these parts."""
    one, place, shared = f"{experts.OURS}experts.{{expert}}.", f"{_LAYER}block_sparse_moe.", f"{_LAYER}shared_mlp."
    return (
        NameRule(f"{one}gate_up.weight", f"{place}{gate_up}[{{expert}}]"),
        NameRule(f"{one}down.weight", f"{place}{down}[{{expert}}]"),
        NameRule(f"{experts.OURS}router.weight", f"{place}{router}.weight"),
        NameRule(f"{experts.OURS}shared.gate_up.weight", f"{shared}input_linear.weight"),
        NameRule(f"{experts.OURS}shared.down.weight", f"{shared}output_linear.weight"),
    )


EXPERT_NAMES = _names("input_linear.weight", "output_linear.weight", "router.layer")
"""Name table of the experts of a Granite without windows."""


def _family(name: str, model_type: str, stem: str, **fields: Any) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        architectures={f"{stem}ForCausalLM": scaled_language_model(False, "logits_scaling", 1.0, divides=True)},
        prefix="model.",
        ignored=gated.IGNORED,
        ignored_config={**HEAD_KEYS, **experts.IGNORED_CONFIG},
        synonyms={"num_experts": "num_local_experts"},
        defaults={
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            **fields.pop("defaults", {}),
        },
        **fields,
    )


GRANITE_MOE = _family(
    "Granite with experts",
    "granitemoe",
    "GraniteMoe",
    spec=_spec(granite.spec_of_granite, shares=False),
    config=_config(granite.config_of_granite, shares=False),
    names=(*EXPERT_NAMES, *gated.NAMES),
)
GRANITE_MOE_SHARED = _family(
    "Granite with experts and a shared one",
    "granitemoeshared",
    "GraniteMoeShared",
    spec=_spec(granite.spec_of_granite),
    config=_config(granite.config_of_granite),
    names=(*EXPERT_NAMES, *gated.NAMES),
    base="Granite with experts",
)
GRANITE_MOE_SWA = _family(
    "Granite with experts and sliding windows",
    "granitemoe_swa",
    "GraniteMoeSWA",
    spec=_spec(granite.spec_of_granite_swa),
    config=_config(granite.config_of_granite_swa),
    names=(*granite.SINK_NAMES, *_names("experts.gate_up_proj", "experts.down_proj", "router"), *gated.NAMES),
    defaults={"sliding_window": 128},
)

register(GRANITE_MOE, GRANITE_MOE_SHARED, GRANITE_MOE_SWA)
