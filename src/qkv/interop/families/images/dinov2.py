"""DINOv2 (Oquab et al. 2023): ViT with LayerScale and optionally SwiGLU.

Positions are resampled to any image size. Models with registers (Darcet et al. 2024) have learned vectors without
positions between class token and patches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import pooled_head
from qkv.interop.families.common.shape import shape_of
from qkv.interop.families.images import vit
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import Broadcast
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.registry import register
from qkv.spec.branches import FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model
from qkv.spec.parts import Scaled
from qkv.spec.signals.images import Patches
from qkv.system.errors import UserError

_LAYER = "encoder.layer.{layer}"
NAMES = (
    *vit.embedded(""),
    NameRule("frontend.registers", "embeddings.register_tokens", Broadcast()),
    NameRule("blocks.{layer}.branches.0.norm.*", f"{_LAYER}.norm1.*"),
    NameRule("blocks.{layer}.branches.0.residual.weight", f"{_LAYER}.layer_scale1.lambda1"),
    NameRule("blocks.{layer}.branches.1.norm.*", f"{_LAYER}.norm2.*"),
    NameRule("blocks.{layer}.branches.1.residual.weight", f"{_LAYER}.layer_scale2.lambda1"),
    NameRule("blocks.{layer}.branches.1.body.up.*", f"{_LAYER}.mlp.fc1.*"),
    NameRule("blocks.{layer}.branches.1.body.gate_up.*", f"{_LAYER}.mlp.weights_in.*"),
    NameRule("blocks.{layer}.branches.1.body.down.*", f"{_LAYER}.mlp.fc2.*", where=lambda spec: not _is_gated(spec)),
    NameRule("blocks.{layer}.branches.1.body.down.*", f"{_LAYER}.mlp.weights_out.*"),
)
IGNORED_CONFIG: Reasons = {
    **dict.fromkeys(
        ("out_features", "out_indices", "stage_names", "apply_layernorm", "reshape_hidden_states"),
        "output format of a backbone",
    ),
    "use_mask_token": "token of masked patches, used in pretraining only",
}


def spec(config: Config, head: Head) -> Model:
    """Build the spec of DINOv2: mlp_ratio · D hidden features, or two thirds of them with SwiGLU."""
    return _body(config, head, vit.frontend(config, patch=14))


def _registered(config: Config, head: Head) -> Model:
    """Build the spec of DINOv2 with registers."""
    return _body(config, head, vit.frontend(config).changed(registers=_registers(config)))


def _registers(config: Config) -> int:
    return config.integer("num_register_tokens", 4)


def _body(config: Config, head: Head, embeds: Patches) -> Model:
    if embeds.height != embeds.width:
        raise UserError(f"{config.source}: image_size is not square, but positions are resampled from a square grid")
    width, ratio = config.size("hidden_size", 768), config.number("mlp_ratio", 4)
    activation, residual = (
        config.word("hidden_act", "gelu", INWARD),
        Scaled(initial=config.number("layerscale_value", 1.0)),
    )
    gated = config.flag("use_swiglu_ffn", False)
    hidden = int(width * ratio)
    second = (
        GatedFeedForward(hidden=_two_thirds(hidden), activation="silu", bias=True)
        if gated
        else FeedForward(hidden=hidden, activation=activation)
    )
    model = vit.body(config, head, second, embeds, residual, eps=1e-6)
    (block,) = model.blocks
    # dropout is applied to the embeddings only, drop path to the branches
    return model.changed(blocks=(block.changed(dropout=0.0, drop_path=config.number("drop_path_rate", 0.0)),))


def _two_thirds(hidden: int) -> int:
    """Return the number of hidden features with which SwiGLU has about as many weights as a plain feed-forward.

    hidden: number of hidden features of the plain one. The result is a multiple of 8.
    """
    return (int(hidden * 2 / 3) + 7) // 8 * 8


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not DINOv2's. Callers read them back to verify."""
    return None if _count(spec) else _keys(spec)


def _config_registered(spec: Model) -> dict[str, Any] | None:
    keys = _keys(spec)
    return keys and {**keys, "num_register_tokens": _count(spec)}


def _count(spec: Model) -> int:
    """Return the number of registers of the model's front end."""
    return getattr(spec.frontend, "registers", 0)


def _keys(spec: Model) -> dict[str, Any] | None:
    match shape_of(spec)[0]:
        case Block(branches=(_, FeedForward() as second), residual=Scaled() as residual) as block:
            values = {"hidden_act": OUTWARD.get(second.activation), "use_swiglu_ffn": False}
            ratio = second.hidden_at(spec.width) / spec.width
        case Block(branches=(_, GatedFeedForward() as second), residual=Scaled() as residual) as block:
            values, hidden = {"use_swiglu_ffn": True}, second.hidden_at(spec.width)
            most = 3 * hidden // 2
            plain = next((n for n in range(most, 0, -1) if n % spec.width == 0 and _two_thirds(n) == hidden), most)
            ratio = plain / spec.width
        case _:
            return None
    keys = vit.keys(spec)
    return keys and {
        **keys,
        **values,
        "mlp_ratio": int(ratio) if ratio == int(ratio) else ratio,
        "layerscale_value": residual.initial,
        "drop_path_rate": block.drop_path,
        "hidden_dropout_prob": getattr(spec.frontend, "dropout", 0.0),
    }


def _is_gated(spec: Model) -> bool:
    return any(isinstance(branch, GatedFeedForward) for block in spec.blocks for branch in block.branches)


def _classifier(leading: Callable[[Config], int], mask: Reasons) -> Architecture:
    """Build the classifier of class token and mean of the patches. ``leading``: positions before the patches."""
    pooling = ("first", "mean_rest")
    plain = vit.classifier("classifier", pooling)
    return replace(
        plain,
        head=lambda config: pooled_head(config, pooling=pooling, leading=leading(config)),
        kept=heads.written_back(mask),
    )


_MASK, _MASK_REGISTERED = vit.mask("dinov2."), vit.mask("dinov2_with_registers.")
DINOV2 = Family(
    name="DINOv2",
    model_types=("dinov2",),
    architectures={
        "Dinov2ForImageClassification": _classifier(lambda config: 1, _MASK),
        "Dinov2Model": heads.vectors(kept=_MASK),
    },
    spec=spec,
    config=config,
    names=vit.prefixed("dinov2.", NAMES),
    prefix="dinov2.",
    ignored_config=IGNORED_CONFIG,
)
REGISTERED = replace(
    DINOV2,
    name="DINOv2 with registers",
    base="DINOv2",
    model_types=("dinov2_with_registers",),
    architectures={
        "Dinov2WithRegistersForImageClassification": _classifier(
            lambda config: 1 + _registers(config), _MASK_REGISTERED
        ),
        "Dinov2WithRegistersModel": heads.vectors(kept=_MASK_REGISTERED),
    },
    spec=_registered,
    config=_config_registered,
    names=vit.prefixed("dinov2_with_registers.", NAMES),
    prefix="dinov2_with_registers.",
    ignored=vit.no_registers("dinov2_with_registers."),
)

register(DINOV2, REGISTERED)
