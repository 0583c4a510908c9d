"""Switch Transformers (Fedus et al. 2021): T5 with a mixture of experts, one per position, in some layers.

In the published code, an expert computes at most ``expert_capacity`` positions of a row and drops the others that
choose it. The context length of qkv's model is set to ``expert_capacity``, so that no position is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import body
from qkv.interop.families.encoder_decoders import t5
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model
from qkv.spec.models.blocks import Layered
from qkv.spec.models.surgery import shortest_pattern
from qkv.spec.position_wise.experts import BalanceLoss, MixtureOfExperts

_CAPACITY = "expert_capacity"
_COUNTS = {"encoder": "num_sparse_encoder_layers", "decoder": "num_sparse_decoder_layers"}
"""Stack -> config key of its number of layers with experts."""
L = TypeVar("L", bound=Layered)


def _names(ours: str, theirs: str, last: int) -> tuple[NameRule, ...]:
    """Return the name table of the feed-forward networks of one stack; parameters as in ``t5``."""
    slot, place = f"{ours}blocks.{{layer}}.branches.{last}.body.", f"{theirs}.block.{{layer}}.layer.{last}.mlp."
    return (
        NameRule(f"{slot}up.weight", f"{place}wi.weight"),
        NameRule(f"{slot}down.weight", f"{place}wo.weight"),
        NameRule(f"{slot}router.*", f"{place}router.classifier.*"),
        NameRule(f"{slot}experts.{{expert}}.up.weight", f"{place}experts.expert_{{expert}}.wi.weight"),
        NameRule(f"{slot}experts.{{expert}}.down.weight", f"{place}experts.expert_{{expert}}.wo.weight"),
    )


def _alone(spec: Model) -> bool:
    return spec.encoder is None


NAMES = (
    *(row._replace(where=_alone) for row in _names("", "encoder", 1)),
    *_names("encoder.", "encoder", 1),
    *_names("", "decoder", 2),
    *t5.NAMES,
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Switch Transformers: like T5, with experts in every n-th layer of each stack."""
    network = FeedForward(
        hidden=config.size("d_ff", 2048),
        activation=config.word("dense_act_fn", "relu", INWARD),
        bias=False,
        dropout=config.number("dropout_rate", 0.1),
    )
    model = t5.spec(config, head, network=network)
    experts = MixtureOfExperts(
        num_experts=config.size("num_experts", 8),
        top_k=1,
        normalised=False,
        gated=False,
        router_bias=config.flag("router_bias", False),
        balance=BalanceLoss(coefficient=config.number("router_aux_loss_coef", 0.001)),
        **{name: getattr(network, name) for name in ("hidden", "activation", "bias", "dropout")},
    )
    length = config.size(_CAPACITY, 64)
    stack = "encoder" if model.encoder is None else "decoder"
    model = _with_experts(model, experts, _sparse(config, stack, model.depth)).changed(context_length=length)
    if model.encoder is None:
        return model
    source = _with_experts(model.encoder, experts, _sparse(config, "encoder", model.encoder.depth))
    return model.changed(encoder=source.changed(context_length=length))


def _sparse(config: Config, stack: str, layers: int) -> list[bool]:
    return _pattern(layers, config.integer(_COUNTS[stack], 3))


def _pattern(layers: int, count: int) -> list[bool]:
    """Return which layers have experts if a config says that ``count`` of ``layers`` do, as in the published code."""
    step = layers // count if count > 0 else layers
    return [step == 1 or (step > 0 and layer % step == 1) for layer in range(layers)]


def _with_experts(stack: L, experts: MixtureOfExperts, sparse: Sequence[bool]) -> L:
    blocks = [
        block.changed(branches=(*block.branches[:-1], experts)) if one else block
        for block, one in zip(stack.layers, sparse, strict=True)
    ]
    return stack.changed(blocks=shortest_pattern(blocks))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    stacks = {"encoder": spec} if spec.encoder is None else {"encoder": spec.encoder, "decoder": spec}
    parts = [part for stack in stacks.values() for block in stack.layers if (part := _experts(block)) is not None]
    if not parts or any(part.canonical(spec.width) != parts[0].canonical(spec.width) for part in parts):
        return None
    network = parts[0].expert(spec.width)
    plain = _without_experts(spec, network)
    plain = plain if spec.encoder is None else plain.changed(encoder=_without_experts(spec.encoder, network))
    keys, counts = t5.config(plain), _counts(stacks)
    if keys is None or counts is None:
        return None
    unread = ("feed_forward_proj", "n_positions")
    balance = parts[0].balance
    return {
        **{key: value for key, value in keys.items() if key not in unread},
        **counts,
        "dense_act_fn": OUTWARD.get(network.activation),
        "num_experts": parts[0].num_experts,
        "router_bias": parts[0].router_bias,
        **({"router_aux_loss_coef": balance.coefficient} if isinstance(balance, BalanceLoss) else {}),
        _CAPACITY: spec.context_length,
    }


def _experts(block: Block) -> MixtureOfExperts | None:
    last = block.branches[-1]
    return last if isinstance(last, MixtureOfExperts) else None


def _without_experts(stack: L, network: FeedForward | GatedFeedForward) -> L:
    blocks = (
        block if _experts(block) is None else block.changed(branches=(*block.branches[:-1], network))
        for block in stack.layers
    )
    return stack.changed(blocks=tuple(blocks))


def _counts(stacks: dict[str, Any]) -> dict[str, int] | None:
    """Return the config keys that give each stack's number of sparse layers; None if no number gives its layers."""
    keys = dict[str, int]()
    for name, stack in stacks.items():
        sparse = [_experts(block) is not None for block in stack.layers]
        fitting = (count for count in range(2 * len(sparse), -1, -1) if _pattern(len(sparse), count) == sparse)
        count = next(fitting, None)
        if count is None:
            return None
        keys[_COUNTS[name]] = count
    return keys


SWITCH = replace(
    t5.T5,
    name="Switch Transformers",
    base="T5",
    model_types=("switch_transformers",),
    architectures={
        "SwitchTransformersForConditionalGeneration": Architecture(t5.scaled_head, t5.scaled_keys, t5.HEAD_NAMES),
        "SwitchTransformersModel": body("shared.weight"),
        "SwitchTransformersEncoderModel": t5.ENCODER,
    },
    spec=spec,
    config=config,
    names=NAMES,
    defaults={"d_model": 768, "num_layers": 12, "num_decoder_layers": 12, "num_heads": 12},
    ignored_config={
        **t5.IGNORED_CONFIG,
        **dict.fromkeys(("router_jitter_noise", "router_z_loss_coef", "add_router_probs"), "training of the router"),
        **dict.fromkeys(("encoder_sparse_step", "decoder_sparse_step"), "given by the numbers of layers with experts"),
        **dict.fromkeys(("router_dtype", "router_ignore_padding_tokens"), "scores are computed in fp32 or wider"),
        "add_cross_attention": "fixed by the family",
        **dict.fromkeys(("num_sparse_encoder_layers", "num_sparse_decoder_layers"), "part of a stack that it lacks"),
    },
)

register(SWITCH)
