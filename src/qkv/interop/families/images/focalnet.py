"""FocalNet (Yang et al. 2022): stages with focal modulation instead of attention."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.shape import shape_of, shortest
from qkv.interop.families.images import stages, vit
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import Broadcast
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import FeedForward
from qkv.spec.heads import Head
from qkv.spec.mixers.grids.focal import FocalModulation
from qkv.spec.model import Block, Model
from qkv.spec.models.merges import StridedConvolution
from qkv.spec.parts import Add, LayerNorm, NoNorm, Scaled
from qkv.spec.signals.images import Patches
from qkv.system.errors import UserError

_SLOT, _LAYER = "blocks.{layer}.branches.", "encoder.stages.{stage}.layers.{block}."
_INSIDE = f"{_LAYER}modulation."
_STEM, _BETWEEN = (7, 4, 2), (3, 2, 1)
"""Sizes, strides and paddings of the convolutions that use_conv_embed gives, before the first stage and between."""


def _embeds(config: Config, count: int) -> Patches:
    """Build the front end of ``count`` stages. Raises ``UserError`` for grids with a row or column left over."""
    patch, _ = vit.sides(config, "patch_size", 4)
    size, step, border = _STEM if config.flag("use_conv_embed", False) else (patch, patch, 0)
    embeds = stages.overlapping(config, size, step, border)
    pixels = (embeds.height or 0, embeds.width or 0)
    rest = [side % patch for side in pixels] + [side % 2 ** (count - 1) for side in embeds.grid or (1,)]
    if any(rest):
        raise UserError(
            f"{config.source}: image_size is {' × '.join(map(str, pixels))}, which leaves pixels or positions over, "
            "which published code fills up with zeros; qkv supports sizes that halve in every stage"
        )
    return embeds


def spec(config: Config, head: Head) -> Model:
    """Build the spec of FocalNet: embed_dim features in the first stage, twice as many in each later one."""
    depths, width = stages.numbers(config, "depths", (2, 2, 6, 2)), config.size("embed_dim", 96)
    levels, sizes = (stages.numbers(config, key, (n,) * 4) for key, n in (("focal_levels", 2), ("focal_windows", 3)))
    stages.of_each_stage(config, len(depths), focal_levels=levels, focal_windows=sizes)
    norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-5))
    scaled, initial = config.flag("use_layerscale", False), config.number("layerscale_value", 1e-4)
    embeds = _embeds(config, len(depths)).changed(norm=norm, dropout=config.number("hidden_dropout_prob", 0.0))
    block = Block(
        order="res_post" if config.flag("use_post_layernorm", False) else "pre",
        norm=norm,
        residual=Scaled(initial=initial) if scaled else Add(),
        dropout=embeds.dropout,
    )
    rates, blocks = stages.drop_paths(config, depths, 0.1), list[Block]()
    size, step, border = _BETWEEN if config.flag("use_conv_embed", False) else (2, 2, 0)
    merge = StridedConvolution(size=size, stride=step, padding=border, norm=norm)
    for stage, depth in enumerate(depths):
        mixer = FocalModulation(
            levels=levels[stage],
            window=sizes[stage],
            mean=config.flag("normalize_modulator", False),
            norm=norm if config.flag("use_post_layernorm_in_modulation", False) else NoNorm(),
        )
        hidden = int(width * 2**stage * config.number("mlp_ratio", 4.0))
        network = FeedForward(hidden=hidden, activation=config.word("hidden_act", "gelu", INWARD))
        for i in range(depth):
            begins = merge if stage and not i else None
            blocks.append(block.changed(branches=(mixer, network), merge=begins, drop_path=rates[len(blocks)]))
    return stages.model(config, width, embeds, blocks, norm, head)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not FocalNet's."""
    match shape_of(spec):
        case Block(branches=(FocalModulation() as mixer, FeedForward() as network)) as block, Patches() as embeds:
            parts = stages.stages_of(spec)
        case _:
            return None
    mixers: list[Any] = [part.blocks[0].branches[0] for part in parts]
    hidden, overlaps = network.hidden_at(spec.width), embeds.stride is not None
    return {
        "embed_dim": spec.width,
        "depths": [len(part.blocks) for part in parts],
        "focal_levels": [getattr(each, "levels", 0) for each in mixers],
        "focal_windows": [getattr(each, "window", 0) for each in mixers],
        "use_conv_embed": overlaps,
        "patch_size": embeds.stride or embeds.patch,
        "image_size": stages.sides(embeds),
        "num_channels": embeds.channels,
        "mlp_ratio": shortest(hidden / spec.width, lambda ratio: int(spec.width * ratio) == hidden),
        "hidden_act": OUTWARD.get(network.activation),
        "hidden_dropout_prob": embeds.dropout,
        "drop_path_rate": spec.layers[-1].drop_path,
        "use_layerscale": isinstance(block.residual, Scaled),
        "layerscale_value": getattr(block.residual, "initial", 1e-4),
        "use_post_layernorm": block.order == "res_post",
        "use_post_layernorm_in_modulation": not mixer.norm.identity,
        "normalize_modulator": mixer.mean,
        "initializer_range": spec.init_std,
        "layer_norm_eps": getattr(block.norm, "eps", 1e-5),
    }


_NAMES = (
    NameRule("frontend.map.*", "embeddings.patch_embeddings.projection.*"),
    NameRule("frontend.norm.*", "embeddings.norm.*"),
    NameRule("blocks.{layer}.merge.map.*", "encoder.stages.{stage-1}.downsample.projection.*"),
    NameRule("blocks.{layer}.merge.norm.*", "encoder.stages.{stage-1}.downsample.norm.*"),
    NameRule(f"{_SLOT}0.norm.*", f"{_LAYER}norm1.*"),
    NameRule(f"{_SLOT}1.norm.*", f"{_LAYER}norm2.*"),
    NameRule(f"{_SLOT}0.residual.weight", f"{_LAYER}gamma_1"),
    NameRule(f"{_SLOT}1.residual.weight", f"{_LAYER}gamma_2"),
    NameRule(f"{_SLOT}0.body.input.*", f"{_INSIDE}projection_in.*"),
    NameRule(f"{_SLOT}0.body.context.weight", f"{_INSIDE}projection_context.weight", Broadcast(axis=2, axes=2)),
    NameRule(f"{_SLOT}0.body.context.bias", f"{_INSIDE}projection_context.bias"),
    NameRule(f"{_SLOT}0.body.levels.{{level}}.weight", f"{_INSIDE}focal_layers.{{level}}.0.weight"),
    NameRule(f"{_SLOT}0.body.norm.*", f"{_INSIDE}layernorm.*"),
    NameRule(f"{_SLOT}0.body.output.*", f"{_INSIDE}projection_out.*"),
    NameRule(f"{_SLOT}1.body.up.*", f"{_LAYER}mlp.fc1.*"),
    NameRule(f"{_SLOT}1.body.down.*", f"{_LAYER}mlp.fc2.*"),
    NameRule("norm.*", "layernorm.*"),
)
FOCALNET = Family(
    name="FocalNet",
    model_types=("focalnet",),
    architectures={"FocalNetForImageClassification": stages.classifier(), "FocalNetModel": heads.vectors()},
    spec=spec,
    config=config,
    names=vit.prefixed("focalnet.", _NAMES),
    prefix="focalnet.",
    ignored=vit.mask("focalnet."),
    ignored_config={
        **vit.IGNORED_CONFIG,
        **dict.fromkeys(("out_features", "out_indices", "stage_names"), "output format of a backbone"),
        "hidden_sizes": "not read: each stage has twice the features of the one before",
    },
    typical={"image_size": 224, "patch_size": 4},
)

register(FOCALNET)
