"""Swin (Liu et al. 2021) and Swin v2 (2022): attention in windows, every other one shifted, and merged patches.

Swin has a table of biases per layer. In Swin v2, scores are cosines, biases come from an MLP, and norms follow the
branches. The body of Donut (Kim et al. 2022) is Swin without the final norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from qkv.interop.families.common import heads
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.shape import shape_of, shortest
from qkv.interop.families.images import stages, vit
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV, Broadcast
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.registry import register
from qkv.ops.windows import offsets
from qkv.spec.branches import FeedForward
from qkv.spec.heads import Head
from qkv.spec.mixers.grids.windows import MappedBias, TableBias, WindowAttention
from qkv.spec.model import Block, Model
from qkv.spec.models.merges import PatchMerging
from qkv.spec.parts import LayerNorm, Learned, NoNorm, NoPositions
from qkv.spec.signals.images import Patches
from qkv.system.errors import UserError

_SLOT, _LAYER = "blocks.{layer}.branches.", "encoder.layers.{stage}.blocks.{block}."
_MERGE, _BEFORE = "blocks.{layer}.merge.", "encoder.layers.{stage-1}.downsample."
_PLAIN = LayerNorm(eps=1e-5)
_DEPTHS, _HEADS = (2, 2, 6, 2), (3, 6, 12, 24)
Windows = Callable[[Config, int, tuple[int, ...]], WindowAttention]
"""Function from (config, stage, grid of the first stage) to the attention of the stage's blocks that shift windows."""


def _names(*rows: NameRule) -> tuple[NameRule, ...]:
    """Return the name table below the body; ``rows``: those that differ."""
    inside = f"{_LAYER}attention.self."
    return (
        *rows,
        NameRule("frontend.map.*", "embeddings.patch_embeddings.projection.*"),
        NameRule("frontend.norm.*", "embeddings.norm.*"),
        NameRule("frontend.positions.table", "embeddings.position_embeddings", Broadcast()),
        NameRule(f"{_MERGE}map.*", f"{_BEFORE}reduction.*"),
        NameRule(f"{_MERGE}norm.*", f"{_BEFORE}norm.*"),
        NameRule(f"{_SLOT}0.norm.*", f"{_LAYER}layernorm_before.*"),
        NameRule(f"{_SLOT}1.norm.*", f"{_LAYER}layernorm_after.*"),
        NameRule(f"{_SLOT}0.body.qkv.*", tuple(f"{inside}{part}.*" for part in ("query", "key", "value")), QKV),
        NameRule(f"{_SLOT}0.body.output.*", f"{_LAYER}attention.output.dense.*"),
        NameRule(f"{_SLOT}1.body.up.*", f"{_LAYER}intermediate.dense.*"),
        NameRule(f"{_SLOT}1.body.down.*", f"{_LAYER}output.dense.*"),
        NameRule("norm.*", "layernorm.*"),
    )


_INSIDE = f"{_LAYER}attention.self."
_TABLE_NAMES = _names(NameRule(f"{_SLOT}0.body.relative.table", f"{_INSIDE}relative_position_bias_table"))
_MAPPED_NAMES = _names(
    NameRule(f"{_SLOT}0.body.query_bias", f"{_INSIDE}query.bias"),
    NameRule(f"{_SLOT}0.body.value_bias", f"{_INSIDE}value.bias"),
    NameRule(f"{_SLOT}0.body.steepness", f"{_INSIDE}logit_scale", Broadcast(axes=2, axis=1)),
    NameRule(f"{_SLOT}0.body.relative.up.*", f"{_INSIDE}continuous_position_bias_mlp.0.*"),
    NameRule(f"{_SLOT}0.body.relative.down.*", f"{_INSIDE}continuous_position_bias_mlp.2.*"),
)


def _attention(config: Config, stage: int, grid: tuple[int, ...]) -> WindowAttention:
    """Build Swin's attention. Raises ``UserError`` for a window larger than the grid, which published code cannot
    read.
    """
    window, sides = config.size("window_size", 7), [-(-side // 2**stage) for side in grid]
    if min(sides) < window:
        raise UserError(
            f"{config.source}: window_size is {window}, but the grid of stage {stage + 1} is "
            f"{' × '.join(map(str, sides))}; the biases of a smaller window are not in the table"
        )
    return _windows(config, stage, window).changed(shift=window // 2)


def _cosine_attention(config: Config, stage: int, grid: tuple[int, ...]) -> WindowAttention:
    """Build the attention of Swin v2, whose windows are not larger than the grid without its odd rows and columns."""
    trained = stages.numbers(config, "pretrained_window_sizes", (0,) * (stage + 1), least=0)
    if len(trained) <= stage:
        raise UserError(f"{config.source}: pretrained_window_sizes has no entry for stage {stage + 1}")
    rows, size = grid[0] // 2**stage, config.size("window_size", 7)
    return _windows(config, stage, min(rows, size)).changed(
        shift=size // 2 if rows > size else 0,
        scores="cosine",
        key_bias=False,
        relative=MappedBias(trained_window=trained[stage] or None),
    )


def _windows(config: Config, stage: int, window: int) -> WindowAttention:
    return WindowAttention(
        num_heads=stages.numbers(config, "num_heads", _HEADS)[stage],
        window=window,
        bias=config.flag("qkv_bias", True),
        dropout=config.number("attention_probs_dropout_prob", 0.0),
        relative=TableBias(),
    )


def _spec(config: Config, head: Head, windows: Windows, block: Block, norm: bool) -> Model:
    """Build the spec of a family. ``windows``: attention, ``block``: order of the norms, ``norm``: final norm."""
    depths, width = stages.numbers(config, "depths", _DEPTHS), config.size("embed_dim", 96)
    stages.of_each_stage(config, len(depths), num_heads=stages.numbers(config, "num_heads", _HEADS))
    embeds = stages.whole_patches(config, vit.frontend(config, patch=4)).changed(class_token=False, norm=_PLAIN)
    absolute = config.flag("use_absolute_embeddings", False)
    embeds = embeds.changed(norm_first=True, positions=Learned() if absolute else NoPositions())
    rates, blocks = stages.drop_paths(config, depths, 0.1), list[Block]()
    inner = LayerNorm(eps=config.number("layer_norm_eps", 1e-5))
    merge = PatchMerging(norm=_PLAIN, norm_first=block.order == "pre")
    for stage, depth in enumerate(depths):
        size = width * 2**stage
        network = FeedForward(
            hidden=int(config.number("mlp_ratio", 4.0) * size), activation=config.word("hidden_act", "gelu", INWARD)
        )
        attention = windows(config, stage, embeds.grid or (1, 1))
        for i in range(depth):
            blocks.append(
                block.changed(
                    branches=(attention if i % 2 else attention.changed(shift=0), network),
                    norm=inner,
                    dropout=embeds.dropout,
                    drop_path=rates[len(blocks)],
                    merge=merge if stage and not i else None,
                )
            )
    return stages.model(config, width, embeds, blocks, inner if norm else NoNorm(), head)


def _of_donut(config: Config, head: Head) -> Model:
    """Build the spec of Donut's encoder, whose published code reads the index of offsets from the files.

    Raises ``UserError`` for an index other than that of a window.
    """
    for name in config.named("relative_position_index"):
        index = config.stored(name)
        if index is not None and not _is_index(index):
            raise UserError(
                f"{config.source}: the tensor {name!r} beside it is not the index of offsets in a window; it needs: "
                "biases at stored places of the table"
            )
    return _spec(config, head, _attention, Block(), norm=False)


def _is_index(index: Tensor) -> bool:
    """Return True if ``index`` (M², M²) is (r + M - 1) (2 M - 1) + c + M - 1, for cells r rows and c columns apart."""
    side = math.isqrt(math.isqrt(index.numel()))
    away = offsets(side, 2, index.device) + side - 1
    computed = away[..., 0] * (2 * side - 1) + away[..., 1]
    return index.shape == computed.shape and bool((index == computed).all())


def _config(spec: Model) -> dict[str, Any] | None:
    """Return the keys that all these families share; None if the structure is not theirs."""
    match shape_of(spec):
        case Block(branches=(WindowAttention() as attention, FeedForward() as network)) as block, Patches() as embeds:
            parts = stages.stages_of(spec)
        case _:
            return None
    if not isinstance(block.norm, LayerNorm):
        return None
    hidden = network.hidden_at(spec.width)
    return {
        "embed_dim": spec.width,
        "depths": [len(stage.blocks) for stage in parts],
        "num_heads": [getattr(stage.blocks[0].branches[0], "num_heads", 0) for stage in parts],
        "window_size": attention.window,
        "mlp_ratio": shortest(hidden / spec.width, lambda ratio: int(ratio * spec.width) == hidden),
        "hidden_act": OUTWARD.get(network.activation),
        "qkv_bias": attention.bias,
        "hidden_dropout_prob": embeds.dropout,
        "attention_probs_dropout_prob": attention.dropout,
        "drop_path_rate": spec.layers[-1].drop_path,
        "use_absolute_embeddings": not embeds.positions.absent,
        "initializer_range": spec.init_std,
        "layer_norm_eps": block.norm.eps,
        "image_size": stages.sides(embeds),
        "patch_size": embeds.patch,
        "num_channels": embeds.channels,
    }


def _config_of_cosines(spec: Model) -> dict[str, Any] | None:
    keys = _config(spec)
    biases = [getattr(stage.blocks[0].branches[0], "relative", None) for stage in stages.stages_of(spec)]
    if keys is None or not all(isinstance(bias, MappedBias) for bias in biases):
        return None
    return {**keys, "pretrained_window_sizes": [getattr(bias, "trained_window", None) or 0 for bias in biases]}


def _index(body: str) -> Reasons:
    """Return the constants in old files, which are computed."""
    constants = ("relative_position_index", "relative_coords_table")
    mask = {f"{body}embeddings.mask_token": "token of masked patches, used in pretraining only"}
    return {**mask, **{f"{body}{_INSIDE}{name}": "constant offsets in a window" for name in constants}}


_IGNORED: Reasons = {
    **vit.IGNORED_CONFIG,
    **dict.fromkeys(("out_features", "out_indices", "stage_names"), "output format of a backbone"),
    **dict.fromkeys(("num_layers", "hidden_size", "path_norm"), "computed from other keys"),
}
SWIN = Family(
    name="Swin",
    model_types=("swin",),
    architectures={"SwinForImageClassification": stages.classifier(), "SwinModel": heads.vectors()},
    spec=lambda config, head: _spec(config, head, _attention, Block(), norm=True),
    config=_config,
    names=vit.prefixed("swin.", _TABLE_NAMES),
    prefix="swin.",
    ignored=_index("swin."),
    ignored_config=_IGNORED,
    typical={"image_size": 224, "patch_size": 4, "window_size": 7, "embed_dim": 96},
    synonyms={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
)
DONUT = replace(
    SWIN,
    name="Donut's encoder",
    model_types=("donut-swin",),
    architectures={"DonutSwinForImageClassification": stages.classifier(), "DonutSwinModel": heads.vectors()},
    spec=_of_donut,
    names=vit.prefixed("donut.", _TABLE_NAMES),
    prefix="donut.",
    ignored=_index("donut."),
)
SWIN_V2 = replace(
    SWIN,
    name="Swin v2",
    model_types=("swinv2",),
    architectures={"Swinv2ForImageClassification": stages.classifier(), "Swinv2Model": heads.vectors()},
    spec=lambda config, head: _spec(config, head, _cosine_attention, Block(order="res_post"), norm=True),
    config=_config_of_cosines,
    names=vit.prefixed("swinv2.", _MAPPED_NAMES),
    prefix="swinv2.",
    ignored=_index("swinv2."),
)

register(SWIN, DONUT, SWIN_V2)
