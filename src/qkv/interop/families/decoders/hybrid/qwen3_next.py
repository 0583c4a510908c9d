"""Qwen3-Next (Qwen team 2025) and the sparse Qwen3.5 (2026): mixers of Qwen3.5, experts, and a gated shared expert."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.activations import INWARD
from qkv.interop.families.common.heads import HEAD_KEYS, language_model, of_decoder
from qkv.interop.families.common.hybrid import first_mixer
from qkv.interop.families.decoders.hybrid import qwen3_5
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, QKV
from qkv.interop.mapping.divisions import RowDivision
from qkv.interop.mapping.family import Family, Reasons
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.mixers.matrix_state import GatedDelta
from qkv.spec.model import Block, Model
from qkv.spec.models.surgery import shortest_pattern
from qkv.spec.position_wise.experts import MixtureOfExperts


def spec_of_next(config: Config, head: Head) -> Model:
    """Build the spec of Qwen3-Next: every ``decoder_sparse_step``-th layer that ``mlp_only_layers`` does not name has
    experts.
    """
    model = qwen3_5.spec(config, head)
    step, dense = config.size("decoder_sparse_step", 1), config.items("mlp_only_layers")
    experts = _experts(config, config.flag("norm_topk_prob", True))
    sparse = [(i + 1) % step == 0 and i not in dense for i in range(len(model.layers))]
    return _with_experts(model, experts, sparse)


def spec_of_sparse(config: Config, head: Head) -> Model:
    """Build the spec of the sparse Qwen3.5: all layers have experts, whose weights sum to 1."""
    model = qwen3_5.spec(config, head)
    return _with_experts(model, _experts(config, True), [True] * len(model.layers))


def _experts(config: Config, normalised: bool) -> MixtureOfExperts:
    return MixtureOfExperts(
        num_experts=config.size("num_experts"),
        top_k=config.integer("num_experts_per_tok"),
        hidden=config.size("moe_intermediate_size"),
        activation=config.word("hidden_act", "silu", INWARD),
        num_shared=1,
        shared_hidden=config.size("shared_expert_intermediate_size"),
        shared_gate=True,
        normalised=normalised,
    )


def _with_experts(model: Model, experts: MixtureOfExperts, sparse: list[bool]) -> Model:
    """Return the model with experts in the layers that ``sparse`` marks."""
    pairs = zip(model.layers, sparse, strict=True)
    blocks = [block.changed(branches=(block.branches[0], experts)) if one else block for block, one in pairs]
    return model.changed(blocks=shortest_pattern(blocks), num_layers=len(blocks))


def _dense(block: Block, hidden: int) -> Block:
    """Return the block with a dense feed-forward in place of experts, whose keys ``gated.config_of`` writes."""
    match block.branches:
        case (mixer, MixtureOfExperts() as experts):
            return block.changed(branches=(mixer, GatedFeedForward(hidden=hidden, activation=experts.activation)))
        case _:
            return block


def _config(spec: Model) -> tuple[dict[str, Any], MixtureOfExperts, list[int]] | None:
    """Return (keys, experts of the first layer that has any, layers without); None for another structure."""
    thinking = [block.branches[-1] for block in spec.layers]
    experts = next((branch for branch in thinking if isinstance(branch, MixtureOfExperts)), None)
    dense = [i for i, branch in enumerate(thinking) if not isinstance(branch, MixtureOfExperts)]
    if experts is None:
        return None
    first = spec.layers[dense[0]].branches[-1] if dense else None
    hidden = first.hidden_at(spec.width) if isinstance(first, GatedFeedForward) else experts.hidden or 1
    blocks = tuple(_dense(block, hidden) for block in spec.layers)
    shared = qwen3_5.config(spec.changed(blocks=blocks, num_layers=None))
    keys = {
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.hidden,
        "shared_expert_intermediate_size": experts.shared_hidden,
    }
    return None if shared is None else ({**shared, **keys}, experts, dense)


def config_of_next(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Qwen3-Next's. Callers read them back."""
    found = _config(spec)
    if found is None:
        return None
    keys, experts, dense = found
    return {**keys, "norm_topk_prob": experts.normalises, "decoder_sparse_step": 1, "mlp_only_layers": dense}


def config_of_sparse(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if it is no sparse Qwen3.5. Callers read them back."""
    found = _config(spec)
    if found is None or found[2]:
        return None
    found[0].pop("intermediate_size")
    return found[0]


def divisions(spec: Model) -> tuple[RowDivision, ...]:
    """Return how rows of Qwen3-Next are divided: by head of attention, and by head of keys of the delta rule."""
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


_OURS, _MLP = "blocks.{layer}.branches.1.body.", "model.layers.{layer}.mlp."
_SHARED, _EXPERT = f"{_MLP}shared_expert.", f"{_MLP}experts.{{expert}}."
EXPERT_NAMES = (
    NameRule(
        f"{_OURS}experts.{{expert}}.gate_up.weight", (f"{_EXPERT}gate_proj.weight", f"{_EXPERT}up_proj.weight"), PAIR
    ),
    NameRule(f"{_OURS}experts.{{expert}}.down.weight", f"{_EXPERT}down_proj.weight"),
    NameRule(f"{_OURS}shared.gate_up.weight", (f"{_SHARED}gate_proj.weight", f"{_SHARED}up_proj.weight"), PAIR),
    NameRule(f"{_OURS}shared.down.weight", f"{_SHARED}down_proj.weight"),
    NameRule(f"{_OURS}shared_gate.weight", f"{_MLP}shared_expert_gate.weight"),
    NameRule(f"{_OURS}router.weight", f"{_MLP}gate.weight"),
)
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
"""Rows of the maps of the delta rule in Qwen3-Next, which lie in two tensors."""
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
    "router_aux_loss_coef": "training of the router",
    "output_router_logits": "format of a call's outputs",
    "mtp_num_hidden_layers": "prediction of further tokens",
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
