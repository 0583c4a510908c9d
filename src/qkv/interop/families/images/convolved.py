"""PoolFormer (Yu et al. 2022) and ConvNeXt (Liu et al. 2022; V2, Woo et al. 2023): stages without attention.

PoolFormer mixes positions by means of neighbours, ConvNeXt by a depthwise convolution before its feed-forward network.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from qkv.spec.mixers.grids.convolved import ConvolvedFeedForward
from qkv.spec.mixers.neighbours import Pooling
from qkv.spec.model import Block, Model
from qkv.spec.models.merges import StridedConvolution
from qkv.spec.parts import Add, GridNorm, LayerNorm, NoNorm, NoPositions, Residual, Scaled
from qkv.spec.signals.images import Patches

_SLOT, _MERGE = "blocks.{layer}.branches.", "blocks.{layer}.merge."
_POOLED = "poolformer.encoder.block.{stage}.{block}."
_SIZES, _DEPTHS = (64, 128, 320, 512), (2, 2, 6, 2)


def _scale(config: Config, initial: float) -> Residual:
    return Scaled(initial=initial) if initial > 0 else Add()


def _pooling_spec(config: Config, head: Head) -> Model:
    """Build the spec of PoolFormer: means of pool_size neighbours, norms over the grid, overlapping patches."""
    depths, widths = stages.numbers(config, "depths", _DEPTHS), stages.numbers(config, "hidden_sizes", _SIZES)
    sizes, steps, borders = (
        stages.numbers(config, "patch_sizes", (7, 3, 3, 3)),
        stages.numbers(config, "strides", (4, 2, 2, 2)),
        stages.numbers(config, "padding", (2, 1, 1, 1), least=0),
    )
    stages.of_each_stage(config, len(depths), hidden_sizes=widths, patch_sizes=sizes, strides=steps, padding=borders)
    config.fixed("num_encoder_blocks", len(depths), "the number of stages, which depths gives")
    scaled = config.flag("use_layer_scale", True)
    initial = config.number("layer_scale_init_value", 1e-5) if scaled else 0.0
    block, rates = Block(norm=GridNorm(), residual=_scale(config, initial)), stages.drop_paths(config, depths, 0.0)
    ratio, activation = config.number("mlp_ratio", 4.0), config.word("hidden_act", "gelu", INWARD)
    blocks = list[Block]()
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        branches = (
            Pooling(size=config.size("pool_size", 3)),
            FeedForward(hidden=int(width * ratio), activation=activation),
        )
        merge = StridedConvolution(width=width, size=sizes[stage], stride=steps[stage], padding=borders[stage])
        for i in range(depth):
            begins = merge if stage and not i else None
            blocks.append(block.changed(branches=branches, merge=begins, drop_path=rates[len(blocks)]))
    embeds = stages.overlapping(config, sizes[0], steps[0], borders[0])
    return stages.model(config, widths[0], embeds, blocks, GridNorm(), head)


def _pooling_config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not PoolFormer's."""
    match shape_of(spec):
        case Block(branches=(Pooling() as pooling, FeedForward() as network)) as block, Patches() as embeds:
            parts = stages.stages_of(spec)
        case _:
            return None
    hidden = network.hidden_at(spec.width)
    return {
        **stages.overlapping_config(embeds, parts),
        "padding": [embeds.padding, *(getattr(part.blocks[0].merge, "padding", 0) for part in parts[1:])],
        "num_encoder_blocks": len(parts),
        "pool_size": pooling.size,
        "mlp_ratio": shortest(hidden / spec.width, lambda ratio: int(ratio * spec.width) == hidden),
        "hidden_act": OUTWARD.get(network.activation),
        "use_layer_scale": isinstance(block.residual, Scaled),
        "layer_scale_init_value": getattr(block.residual, "initial", 0.0),
        "drop_path_rate": spec.layers[-1].drop_path,
        "initializer_range": spec.init_std,
    }


def _dense(ours: str, theirs: str) -> tuple[NameRule, NameRule]:
    """Return the rows of a linear map that is published as a convolution of single positions."""
    return (
        NameRule(f"{ours}.weight", f"{theirs}.weight", Broadcast(axis=2, axes=2)),
        NameRule(f"{ours}.bias", f"{theirs}.bias"),
    )


_PATCHES = "poolformer.encoder.patch_embeddings."
POOLFORMER = Family(
    name="PoolFormer",
    model_types=("poolformer",),
    architectures={"PoolFormerForImageClassification": stages.classifier()},
    spec=_pooling_spec,
    config=_pooling_config,
    names=(
        NameRule("frontend.map.*", f"{_PATCHES}0.projection.*"),
        NameRule(f"{_MERGE}map.*", f"{_PATCHES}{{stage}}.projection.*"),
        NameRule(f"{_SLOT}0.norm.*", f"{_POOLED}before_norm.*"),
        NameRule(f"{_SLOT}1.norm.*", f"{_POOLED}after_norm.*"),
        NameRule(f"{_SLOT}0.residual.weight", f"{_POOLED}layer_scale_1"),
        NameRule(f"{_SLOT}1.residual.weight", f"{_POOLED}layer_scale_2"),
        *_dense(f"{_SLOT}1.body.up", f"{_POOLED}output.conv1"),
        *_dense(f"{_SLOT}1.body.down", f"{_POOLED}output.conv2"),
        NameRule("norm.*", "norm.*"),
    ),
    ignored_config={
        **vit.IGNORED_CONFIG,
        **dict.fromkeys(("patch_size", "stride"), "replaced by the lists of each stage"),
    },
)

_EPS = LayerNorm(eps=1e-6)


def _convolved_spec(config: Config, head: Head, second: bool) -> Model:
    """Build the spec of ConvNeXt. ``second``: V2, with a norm of responses instead of the factor of a branch."""
    depths = stages.numbers(config, "depths", (3, 3, 9, 3))
    widths = stages.numbers(config, "hidden_sizes", (96, 192, 384, 768))
    stages.of_each_stage(config, len(depths), hidden_sizes=widths)
    config.fixed("num_stages", len(depths), "the number of stages, which depths gives")
    embeds = vit.frontend(config, patch=4).changed(class_token=False, norm=_EPS, positions=NoPositions())
    rates, blocks = stages.drop_paths(config, depths, 0.0), list[Block]()
    initial = 0.0 if second else config.number("layer_scale_init_value", 1e-6)
    block = Block(norm=NoNorm(), residual=_scale(config, initial))
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        branch = ConvolvedFeedForward(
            hidden=4 * width,
            size=7,
            place="input",
            activation=config.word("hidden_act", "gelu", INWARD),
            norm=_EPS,
            response_norm=second,
        )
        merge = StridedConvolution(width=width, size=2, stride=2, padding=0, norm_before=_EPS)
        for i in range(depth):
            begins = merge if stage and not i else None
            blocks.append(block.changed(branches=(branch,), merge=begins, drop_path=rates[len(blocks)]))
    return stages.model(config, widths[0], embeds, blocks, NoNorm(), head)


def _convolved_config(spec: Model, second: bool) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not ConvNeXt's."""
    match shape_of(spec):
        case Block(branches=(ConvolvedFeedForward() as network,)) as block, Patches() as embeds if (
            network.response_norm == second
        ):
            parts = stages.stages_of(spec)
        case _:
            return None
    scale = {} if second else {"layer_scale_init_value": getattr(block.residual, "initial", 0.0)}
    return {
        "depths": [len(part.blocks) for part in parts],
        "hidden_sizes": [part.width for part in parts],
        "num_stages": len(parts),
        "hidden_act": OUTWARD.get(network.activation),
        **scale,
        "layer_norm_eps": getattr(getattr(spec.head, "norm", None), "eps", 1e-12),
        "drop_path_rate": spec.layers[-1].drop_path,
        "initializer_range": spec.init_std,
        "image_size": stages.sides(embeds),
        "patch_size": embeds.patch,
        "num_channels": embeds.channels,
    }


def _convolved_names(body: str) -> tuple[NameRule, ...]:
    """Return the name table of ConvNeXt; ``body``: prefix of the names in files."""
    layer, before = "encoder.stages.{stage}.layers.{block}.", "encoder.stages.{stage}.downsampling_layer."
    rows = (
        NameRule("frontend.map.*", "embeddings.patch_embeddings.*"),
        NameRule("frontend.norm.*", "embeddings.layernorm.*"),
        NameRule(f"{_MERGE}norm_before.*", f"{before}0.*"),
        NameRule(f"{_MERGE}map.*", f"{before}1.*"),
        NameRule(f"{_SLOT}0.residual.weight", f"{layer}layer_scale_parameter"),
        NameRule(f"{_SLOT}0.body.convolution.*", f"{layer}dwconv.*"),
        NameRule(f"{_SLOT}0.body.norm.*", f"{layer}layernorm.*"),
        NameRule(f"{_SLOT}0.body.up.*", f"{layer}pwconv1.*"),
        NameRule(f"{_SLOT}0.body.down.*", f"{layer}pwconv2.*"),
        NameRule(f"{_SLOT}0.body.response", f"{layer}grn.weight", Broadcast(axes=3)),
        NameRule(f"{_SLOT}0.body.response_bias", f"{layer}grn.bias", Broadcast(axes=3)),
    )
    return vit.prefixed(body, rows)


def _last_norm(config: Config) -> LayerNorm:
    return LayerNorm(eps=config.number("layer_norm_eps", 1e-12))


CONVNEXT = Family(
    name="ConvNeXt",
    model_types=("convnext",),
    architectures={"ConvNextForImageClassification": stages.classifier(norm=_last_norm, norms="convnext.layernorm.*")},
    spec=lambda config, head: _convolved_spec(config, head, second=False),
    config=lambda spec: _convolved_config(spec, second=False),
    names=_convolved_names("convnext."),
    prefix="convnext.",
    ignored_config={
        **vit.IGNORED_CONFIG,
        **dict.fromkeys(("out_features", "out_indices", "stage_names"), "output format of a backbone"),
    },
    typical={"image_size": 224, "patch_size": 4},
    synonyms={"num_hidden_layers": "num_stages"},
)
CONVNEXT_V2 = replace(
    CONVNEXT,
    name="ConvNeXt V2",
    model_types=("convnextv2",),
    architectures={
        "ConvNextV2ForImageClassification": stages.classifier(norm=_last_norm, norms="convnextv2.layernorm.*")
    },
    spec=lambda config, head: _convolved_spec(config, head, second=True),
    config=lambda spec: _convolved_config(spec, second=True),
    names=_convolved_names("convnextv2."),
    prefix="convnextv2.",
)

register(POOLFORMER, CONVNEXT, CONVNEXT_V2)
