"""BEiT (Bao et al. 2022) and data2vec for images (Baevski et al. 2022): ViT with relative biases and LayerScale.

Keys have no bias. The biases are indexed by the offset of two patches on the grid, or by the class token, with a table
per layer or one for all layers. The classifier reads the norm of the mean of the patches, or the class token after the
final norm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.activations import OUTWARD
from qkv.interop.families.common.heads import pooled_head, problem_keys
from qkv.interop.families.common.shape import shape_of
from qkv.interop.families.images import vit
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import ClassificationHead, Head, RegressionHead
from qkv.spec.masks import Full
from qkv.spec.model import Block, Model
from qkv.spec.parts import Add, Bias2D, LayerNorm, NoNorm, NoPositions, NoRelative, Relative, Residual, Scaled
from qkv.spec.signals.images import Patches
from qkv.system.errors import UserError

_OWN, _SHARED = "use_relative_position_bias", "use_shared_relative_position_bias"
_SLOT, _LAYER = "blocks.{layer}.branches.", "encoder.layer.{layer}."
_TABLE = "relative_position_bias.relative_position_bias_table"


def _names(body: str) -> tuple[NameRule, ...]:
    """Return the name table; ``body``: prefix of the names in files."""
    attention = f"{_LAYER}attention.attention."
    rows = (
        NameRule(f"{_SLOT}0.body.query_bias", f"{attention}query.bias"),
        NameRule(f"{_SLOT}0.body.value_bias", f"{attention}value.bias"),
        NameRule("blocks.0.branches.0.body.relative.table", f"encoder.{_TABLE}", where=_shares),
        NameRule(f"{_SLOT}0.body.relative.table", f"{attention}{_TABLE}"),
        NameRule(f"{_SLOT}0.residual.weight", f"{_LAYER}lambda_1"),
        NameRule(f"{_SLOT}1.residual.weight", f"{_LAYER}lambda_2"),
        *vit.names(""),
    )
    return vit.prefixed(body, rows)


def _shares(spec: Model) -> bool:
    """Return True if all layers share one table of biases."""
    return any(getattr(_relative(block), "shared", False) for block in spec.layers[:1])


def _relative(block: Block) -> Relative:
    return getattr(block.branches[0], "relative", NoRelative())


def spec(config: Config, head: Head) -> Model:
    """Build the spec of BEiT: with mean pooling, the pooled vector is normalised, not the output of the blocks."""
    embeds = vit.frontend(config)
    if not config.flag("use_absolute_position_embeddings", False):
        embeds = embeds.changed(positions=NoPositions())
    norm, count = _norm(config), config.layers("num_hidden_layers", 12)
    attention = Attention(
        num_heads=config.size("num_attention_heads", 12),
        mask=Full(),
        key_bias=False,
        relative=_bias(config, embeds),
        dropout=config.number("attention_probs_dropout_prob", 0.0),
    )
    block = Block(
        branches=(attention, vit.feed_forward(config)), norm=norm, dropout=embeds.dropout, residual=_residual(config)
    )
    rate = config.number("drop_path_rate", 0.1) / max(count - 1, 1)
    return Model(
        width=config.size("hidden_size", 768),
        num_layers=count,
        context_length=embeds.num_positions or 1,
        frontend=embeds,
        blocks=tuple(block.changed(drop_path=i * rate) for i in range(count)),
        norm=NoNorm() if _pools_mean(config) else norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def _norm(config: Config) -> LayerNorm:
    return LayerNorm(eps=config.number("layer_norm_eps", 1e-12))


def _pools_mean(config: Config) -> bool:
    return config.flag("use_mean_pooling", True)


def _residual(config: Config) -> Residual:
    initial = config.number("layer_scale_init_value", 0.1)
    return Scaled(initial=initial) if initial > 0 else Add()


def _bias(config: Config, embeds: Patches) -> Relative:
    """Build the relative positions of a config: a table of biases per layer, one for all layers, or none."""
    per_layer, shared = config.flag(_OWN, False), config.flag(_SHARED, False)
    if per_layer and shared:
        raise UserError(
            f"{config.source}: {_OWN} and {_SHARED} are both true, but qkv adds biases of one table only, "
            "either per layer or for all layers"
        )
    if not per_layer and not shared:
        return NoRelative()
    if embeds.height != embeds.width:
        raise UserError(
            f"{config.source}: image_size is {embeds.height} × {embeds.width}, but qkv reads relative position biases "
            "for square images only"
        )
    return Bias2D(shared=shared)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not BEiT's. Callers read them back to verify."""
    match shape_of(spec):
        case (
            Block(branches=(Attention() as attention, FeedForward() as network), norm=LayerNorm() as norm) as block,
            Patches() as embeds,
        ) if embeds.height is not None and embeds.width is not None:
            relative = attention.relative
        case _:
            return None
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": attention.num_heads,
        "intermediate_size": network.hidden_at(spec.width),
        "hidden_act": OUTWARD[network.activation],
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": attention.dropout,
        "initializer_range": spec.init_std,
        "layer_norm_eps": norm.eps,
        "image_size": embeds.height if embeds.height == embeds.width else [embeds.height, embeds.width],
        "patch_size": embeds.patch,
        "num_channels": embeds.channels,
        "use_absolute_position_embeddings": not embeds.positions.absent,
        _OWN: isinstance(relative, Bias2D) and not relative.shared,
        _SHARED: isinstance(relative, Bias2D) and relative.shared,
        "layer_scale_init_value": getattr(block.residual, "initial", 0.0),
        "drop_path_rate": spec.layers[-1].drop_path,
        "use_mean_pooling": spec.norm.identity,
    }


def _classifier(body: str) -> Architecture:
    """Build the classifier of the normalised mean of the patches, or of the class token. ``body``: prefix of names."""

    def read(config: Config) -> Head:
        if _pools_mean(config):
            return pooled_head(config, pooling="mean_rest", norm=_norm(config))
        return pooled_head(config, pooling="first")

    def write(head: Head) -> dict[str, Any] | None:
        return problem_keys(head) if isinstance(head, ClassificationHead | RegressionHead) else None

    rows = NameRule("head.norm.*", f"{body}pooler.layernorm.*"), NameRule("head.output.*", "classifier.*")
    return Architecture(read, write, rows, vit.mask(body))


def _unused(body: str) -> Reasons:
    return {f"{body}pooler.layernorm.*": "norm of the pooled vector, which this architecture does not use"}


def _index(body: str) -> Reasons:
    return {
        f"{body}encoder.{_TABLE.replace('bias_table', 'index')}": "constant index of offsets",
        f"{body}{_LAYER}attention.attention.{_TABLE.replace('bias_table', 'index')}": "constant index of offsets",
    }


_OF_OTHERS = (
    "pool_scales",
    "use_auxiliary_head",
    "auxiliary_loss_weight",
    "auxiliary_channels",
    "auxiliary_num_convs",
    "auxiliary_concat_input",
    "semantic_loss_ignore_index",
    "add_fpn",
    "segmentation_indices",
)
BEIT = Family(
    name="BEiT",
    model_types=("beit",),
    architectures={
        "BeitForImageClassification": _classifier("beit."),
        "BeitModel": replace(heads.vectors(kept=_unused("beit.")), ignored=vit.mask("beit.")),
    },
    spec=spec,
    config=config,
    names=_names("beit."),
    prefix="beit.",
    ignored=_index("beit."),
    ignored_config={
        **dict.fromkeys(_OF_OTHERS, "used in segmentation, or as a backbone, only"),
        **dict.fromkeys(
            ("out_features", "out_indices", "stage_names", "reshape_hidden_states"), "output format of a backbone"
        ),
        "use_mask_token": "token of masked patches, used in pretraining only",
        "vocab_size": "number of codes in pretraining",
    },
)
DATA2VEC = replace(
    BEIT,
    name="data2vec-vision",
    base="BEiT",
    model_types=("data2vec-vision",),
    architectures={
        "Data2VecVisionForImageClassification": _classifier("data2vec_vision."),
        "Data2VecVisionModel": replace(
            heads.vectors(kept=_unused("data2vec_vision.")), ignored=vit.mask("data2vec_vision.")
        ),
    },
    names=_names("data2vec_vision."),
    prefix="data2vec_vision.",
    ignored=_index("data2vec_vision."),
)

register(BEIT, DATA2VEC)
