"""PVT (Wang et al. 2021), PVT v2 (2022) and SegFormer (Xie et al. 2021): attention to keys and values of blocks.

Blocks of a stage read fewer keys the finer its grid is. PVT has learned positions in each stage and a class token in
the last; in the others, patches overlap, and depthwise convolutions in the feed-forward networks say where a patch is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.shape import shape_of
from qkv.interop.families.images import stages, vit
from qkv.interop.families.images.stages import Stage
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, QKV, Broadcast
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, Branch, FeedForward
from qkv.spec.heads import Head, VectorsHead
from qkv.spec.masks import Full
from qkv.spec.mixers.grids.convolved import ConvolvedFeedForward
from qkv.spec.mixers.grids.reduced import ReducedAttention
from qkv.spec.model import Block, Model
from qkv.spec.models.merges import StridedConvolution
from qkv.spec.parts import LayerNorm, Learned
from qkv.spec.signals.images import Patches
from qkv.system.errors import UserError

_SLOT, _MERGE = "blocks.{layer}.branches.", "blocks.{layer}.merge."
_REDUCED = "reduced_attention"
_RATIOS = (8, 4, 2, 1)


def _names(patches: str, block: str, inside: dict[str, str], norm: str, last: str = "") -> tuple[NameRule, ...]:
    """Return the name table of a family.

    patches: names of the patch embedding of a stage, with ``{stage}``.   block: names of a block.   inside: names in
    a block by role.   norm: name of the final norm.   last: name of the norm after an earlier stage.
    """
    attention, first = block + inside["attention"], patches.replace("{stage}", "0")
    return (
        NameRule("frontend.map.*", f"{first}{inside['map']}.*"),
        NameRule("frontend.norm.*", f"{first}layer_norm.*"),
        NameRule("frontend.positions.table", f"{first}position_embeddings", Broadcast()),
        NameRule(f"{_MERGE}map.*", f"{patches}{inside['map']}.*"),
        NameRule(f"{_MERGE}norm.*", f"{patches}layer_norm.*"),
        NameRule(f"{_MERGE}norm_before.*", f"{last}.*"),
        NameRule(f"{_MERGE}positions.table", f"{patches}position_embeddings", Broadcast()),
        NameRule(f"{_MERGE}first", f"{patches}cls_token", Broadcast(axes=2)),
        NameRule(f"{_SLOT}0.norm.*", f"{block}layer_norm_1.*"),
        NameRule(f"{_SLOT}1.norm.*", f"{block}layer_norm_2.*"),
        NameRule(f"{_SLOT}0.body.qkv.*", tuple(f"{attention}{each}.*" for each in ("query", "key", "value")), QKV),
        NameRule(f"{_SLOT}0.body.query.*", f"{attention}query.*"),
        NameRule(f"{_SLOT}0.body.key_value.*", (f"{attention}key.*", f"{attention}value.*"), PAIR),
        NameRule(f"{_SLOT}0.body.reduction.*", f"{attention}{inside['reduction']}.*"),
        NameRule(f"{_SLOT}0.body.norm.*", f"{attention}layer_norm.*"),
        NameRule(f"{_SLOT}0.body.output.*", f"{block}{inside['output']}.*"),
        NameRule(f"{_SLOT}1.body.up.*", f"{block}mlp.dense1.*"),
        NameRule(f"{_SLOT}1.body.convolution.*", f"{block}mlp.dwconv.dwconv.*"),
        NameRule(f"{_SLOT}1.body.down.*", f"{block}mlp.dense2.*"),
        NameRule("norm.*", f"{norm}.*"),
    )


class Lists:
    """Lists of a config with an entry for each stage."""

    def __init__(self, config: Config, ratios: str, widths: Sequence[int], networks: Sequence[int], patch: int):
        """Read the lists.

        ``ratios``: config key of the side of a block whose positions share one key and value; ``widths``, ``networks``
        and ``patch``: default widths of stages, MLP ratios and size of the first patch.
        """
        self.depths = stages.numbers(config, "depths", (2, 2, 2, 2))
        self.widths = stages.numbers(config, "hidden_sizes", widths)
        self.heads = stages.numbers(config, "num_attention_heads", (1, 2, 5, 8))
        self.networks = stages.numbers(config, "mlp_ratios", networks)
        self.ratios = stages.numbers(config, ratios, _RATIOS)
        self.sizes = stages.numbers(config, "patch_sizes", (patch, *(2 if patch == 4 else 3,) * 3))
        self.steps = stages.numbers(config, "strides", (4, 2, 2, 2))
        lists = {
            "hidden_sizes": self.widths,
            "num_attention_heads": self.heads,
            "mlp_ratios": self.networks,
            ratios: self.ratios,
            "patch_sizes": self.sizes,
            "strides": self.steps,
        }
        stages.of_each_stage(config, len(self.depths), **lists)
        config.fixed("num_encoder_blocks", len(self.depths), "the number of stages, which depths gives")


def _attention(config: Config, lists: Lists, stage: int, norm: LayerNorm) -> Branch:
    """Build the attention of a stage, to blocks of positions or, with a ratio of 1, to all positions."""
    fields: dict[str, Any] = {
        "num_heads": lists.heads[stage],
        "bias": config.flag("qkv_bias", True),
        "dropout": config.number("attention_probs_dropout_prob", 0.0),
    }
    if lists.ratios[stage] == 1:
        return Attention(mask=Full(), output_bias=True, **fields)
    return ReducedAttention(ratio=lists.ratios[stage], norm=norm, **fields)


def _blocks(
    config: Config, lists: Lists, merges: Sequence[StridedConvolution], block: Block, kind: type[Branch]
) -> list[Block]:
    """Build the blocks of all stages. ``merges``: merge before each stage; ``kind``: class of the feed-forward."""
    rates, blocks, norm = stages.drop_paths(config, lists.depths, 0.0), list[Block](), block.norm
    assert isinstance(norm, LayerNorm)
    for stage, (depth, width) in enumerate(zip(lists.depths, lists.widths, strict=True)):
        network = kind.parse(
            {"hidden": width * lists.networks[stage], "activation": config.word("hidden_act", "gelu", INWARD)}
        )
        branches = _attention(config, lists, stage, norm), network
        for i in range(depth):
            begins = merges[stage] if stage and not i else None
            blocks.append(block.changed(branches=branches, merge=begins, drop_path=rates[len(blocks)]))
    return blocks


def _overlapping_spec(config: Config, head: Head, norm: LayerNorm, networks: Sequence[int]) -> Model:
    """Build the spec of PVT v2 and of SegFormer. ``norm``: used everywhere; ``networks``: default of mlp_ratios."""
    lists = Lists(config, "sr_ratios", (32, 64, 160, 256), networks, patch=7)
    merges = [
        StridedConvolution(width=width, size=size, stride=step, padding=size // 2, norm=norm, norm_before=norm)
        for width, size, step in zip(lists.widths, lists.sizes, lists.steps, strict=True)
    ]
    block = Block(norm=norm, dropout=config.number("hidden_dropout_prob", 0.0))
    embeds = stages.overlapping(config, lists.sizes[0], lists.steps[0], lists.sizes[0] // 2).changed(norm=norm)
    blocks = _blocks(config, lists, merges, block, ConvolvedFeedForward)
    return stages.model(config, lists.widths[0], embeds, blocks, norm, head)


def _second_spec(config: Config, head: Head) -> Model:
    """Build the spec of PVT v2. Raises ``UserError`` if keys and values are pooled to a fixed grid."""
    config.fixed("linear_attention", False, "keys and values, which become means over a grid of 7 × 7")
    return _overlapping_spec(config, head, LayerNorm(eps=config.number("layer_norm_eps", 1e-6)), (8, 8, 4, 4))


def _first_spec(config: Config, head: Head) -> Model:
    """Build the spec of PVT. Raises ``UserError`` for images that are not square, and for a single stage."""
    lists = Lists(config, "sequence_reduction_ratios", (64, 128, 320, 512), (8, 8, 4, 4), patch=4)
    if len(lists.depths) < 2:
        raise UserError(f"{config.source}: depths has one entry, but qkv supports PVT with two stages or more")
    norm, last = LayerNorm(eps=config.number("layer_norm_eps", 1e-6)), len(lists.depths) - 1
    # The published keys are exchanged: patch_sizes are the steps of the convolutions, and strides their sizes.
    merges = [
        StridedConvolution(
            width=width, size=size, stride=step, padding=0, norm=norm, positions=Learned(), class_token=i == last
        )
        for i, (width, size, step) in enumerate(zip(lists.widths, lists.steps, lists.sizes, strict=True))
    ]
    block = Block(norm=norm, dropout=config.number("hidden_dropout_prob", 0.0))
    embeds = stages.overlapping(config, lists.steps[0], lists.sizes[0], 0).changed(
        norm=norm, norm_first=True, positions=Learned(), dropout=block.dropout
    )
    if embeds.height != embeds.width:
        raise UserError(f"{config.source}: image_size is not square, but published PVT models read square images only")
    blocks = _blocks(config, lists, merges, block, FeedForward)
    return stages.model(config, lists.widths[0], embeds, blocks, norm, head)


def _count(config: Config) -> int:
    """Return the number of PVT's classes, by default 1000, whatever their names are."""
    return config.size("num_labels", 1000)


def _config(spec: Model, network: type[Any], ratios: str) -> dict[str, Any] | None:
    """Return the config keys that these families share; None if the structure differs. ``ratios``: as in ``Lists``."""
    block, embeds = shape_of(spec)
    parts = stages.stages_of(spec) if block else []
    firsts = [part.blocks[0] for part in parts]
    fitting = all(
        len(each.branches) == 2
        and isinstance(each.branches[0], Attention | ReducedAttention)
        and isinstance(each.branches[1], network)
        for each in firsts
    )
    if block is None or not fitting or not isinstance(embeds, Patches):
        return None
    attention, second = block.branches
    return {
        **stages.overlapping_config(embeds, parts),
        "num_encoder_blocks": len(parts),
        ratios: [getattr(each.branches[0], "ratio", 1) for each in firsts],
        "num_attention_heads": [getattr(each.branches[0], "num_heads", 1) for each in firsts],
        "mlp_ratios": [_ratio(part) for part in parts],
        "hidden_act": OUTWARD.get(getattr(second, "activation", "")),
        "qkv_bias": getattr(attention, "bias", True),
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": getattr(attention, "dropout", 0.0),
        "drop_path_rate": spec.layers[-1].drop_path,
        "initializer_range": spec.init_std,
        "layer_norm_eps": getattr(block.norm, "eps", 1e-6),
        "image_size": stages.sides(embeds),
    }


def _ratio(stage: Stage) -> int:
    network: Any = stage.blocks[0].branches[1]
    return int(network.hidden_at(stage.width) // stage.width)


def _first_config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys of PVT, in which ``patch_sizes`` holds the strides and ``strides`` the sizes."""
    keys = _config(spec, FeedForward, "sequence_reduction_ratios")
    if keys is None:
        return None
    # The published default is 1000 classes, whatever their names are.
    classes = {} if isinstance(spec.head, VectorsHead) else {"num_labels": getattr(spec.head, "num_classes", 1)}
    return {**keys, **classes, "patch_sizes": keys["strides"], "strides": keys["patch_sizes"]}


def _segformer_config(spec: Model) -> dict[str, Any] | None:
    keys = _config(spec, ConvolvedFeedForward, "sr_ratios")
    if keys is None or keys.pop("qkv_bias") is not True or keys.pop("layer_norm_eps") != _PLAIN.eps:
        return None
    return keys


_PLAIN = LayerNorm(eps=1e-5)
_LATER = {"attention": "attention.", "map": "proj", "reduction": "spatial_reduction", "output": "attention.proj"}
_EARLY = {
    "attention": "attention.self.",
    "map": "projection",
    "reduction": "sequence_reduction",
    "output": "attention.output.dense",
}
_IGNORED = {
    **vit.IGNORED_CONFIG,
    **dict.fromkeys(("out_features", "out_indices", "stage_names"), "output format of a backbone"),
}
PVT = Family(
    name="PVT",
    model_types=("pvt",),
    architectures={"PvtForImageClassification": stages.classifier("first", count=_count), "PvtModel": heads.vectors()},
    spec=_first_spec,
    config=_first_config,
    names=vit.prefixed(
        "pvt.",
        _names("encoder.patch_embeddings.{stage}.", "encoder.block.{stage}.{block}.", _EARLY, "encoder.layer_norm"),
    ),
    prefix="pvt.",
    ignored_config=_IGNORED,
)
PVT_V2 = Family(
    name="PVT v2",
    model_types=("pvt_v2",),
    architectures={"PvtV2ForImageClassification": stages.classifier()},
    spec=_second_spec,
    config=lambda spec: _config(spec, ConvolvedFeedForward, "sr_ratios"),
    names=vit.prefixed(
        "pvt_v2.",
        _names(
            "encoder.layers.{stage}.patch_embedding.",
            "encoder.layers.{stage}.blocks.{block}.",
            _LATER,
            "encoder.layers.{last}.layer_norm",
            "encoder.layers.{stage-1}.layer_norm",
        ),
    ),
    prefix="pvt_v2.",
    ignored_config=_IGNORED,
)
SEGFORMER = Family(
    name="SegFormer",
    model_types=("segformer",),
    architectures={"SegformerForImageClassification": stages.classifier()},
    spec=lambda config, head: _overlapping_spec(config, head, _PLAIN, (4, 4, 4, 4)),
    config=_segformer_config,
    names=vit.prefixed(
        "segformer.",
        _names(
            "encoder.patch_embeddings.{stage}.",
            "encoder.block.{stage}.{block}.",
            {**_EARLY, "map": "proj", "reduction": "sr"},
            "encoder.layer_norm.{last}",
            "encoder.layer_norm.{stage-1}",
        ),
    ),
    prefix="segformer.",
    defaults={"drop_path_rate": 0.1},
    ignored_config={
        **_IGNORED,
        **dict.fromkeys(("decoder_hidden_size", "semantic_loss_ignore_index"), "used in segmentation only"),
        **dict.fromkeys(("classifier_dropout_prob", "layer_norm_eps", "downsampling_rates"), "not read by classifiers"),
        "reshape_last_stage": "the form of the vectors, whose mean is the same",
    },
    synonyms={"num_hidden_layers": "num_encoder_blocks"},
)

register(PVT, PVT_V2, SEGFORMER)
