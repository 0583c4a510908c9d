"""ViT (Dosovitskiy et al. 2021): a class token and image patches, learned positions, pre-norm blocks.

DeiT has the same body, and DINOv2 has it under other tensor names.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import pooled_head, problem_keys
from qkv.interop.families.common.shape import shape_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV, Broadcast
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import ClassificationHead, Head, RegressionHead
from qkv.spec.masks import Full
from qkv.spec.model import Block, Model
from qkv.spec.parts import LayerNorm, Learned, LearnedGrid, Positions, Residual
from qkv.spec.signals.images import Patches
from qkv.system.errors import UserError, quoted

IGNORED_CONFIG: Reasons = {
    **dict.fromkeys(("pooler_act", "pooler_output_size"), "part of the pooler, which is not used"),
    "encoder_stride": "part of the head that reconstructs masked images",
}


def names(body: str) -> tuple[NameRule, ...]:
    """Return the name table of ViT's structure; ``body``: prefix of the names in files."""
    layer = "encoder.layer.{layer}"
    rows = (
        *embedded(""),
        NameRule("blocks.{layer}.branches.0.norm.*", f"{layer}.layernorm_before.*"),
        NameRule("blocks.{layer}.branches.1.norm.*", f"{layer}.layernorm_after.*"),
        NameRule("blocks.{layer}.branches.1.body.up.*", f"{layer}.intermediate.dense.*"),
        NameRule("blocks.{layer}.branches.1.body.down.*", f"{layer}.output.dense.*"),
    )
    return prefixed(body, rows)


def embedded(body: str) -> tuple[NameRule, ...]:
    """Return the name table of embeddings, attention and final norm; ``body``: prefix of the names in files."""
    layer = "encoder.layer.{layer}.attention"
    rows = (
        NameRule("frontend.map.*", "embeddings.patch_embeddings.projection.*"),
        NameRule("frontend.first", "embeddings.cls_token", Broadcast(axes=2)),
        NameRule("frontend.positions.table", "embeddings.position_embeddings", Broadcast()),
        NameRule(
            "blocks.{layer}.branches.0.body.qkv.*",
            tuple(f"{layer}.attention.{part}.*" for part in ("query", "key", "value")),
            QKV,
        ),
        NameRule("blocks.{layer}.branches.0.body.output.*", f"{layer}.output.dense.*"),
        NameRule("norm.*", "layernorm.*"),
    )
    return prefixed(body, rows)


def prefixed(body: str, rows: tuple[NameRule, ...]) -> tuple[NameRule, ...]:
    """Return ``rows`` with the prefix ``body`` before the published names."""
    return tuple(row.below(body) for row in rows)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of ViT: D = hidden_size, num_hidden_layers blocks, intermediate_size hidden features."""
    return body(config, head, feed_forward(config), frontend(config))


def feed_forward(config: Config) -> FeedForward:
    """Build the feed-forward branch of a config."""
    return FeedForward(
        hidden=config.size("intermediate_size", 3072), activation=config.word("hidden_act", "gelu", INWARD)
    )


def frontend(config: Config, patch: int = 16, extra_tokens: int = 0) -> Patches:
    """Build the front end of a config: class token, ``extra_tokens`` learned vectors, then square patches.

    ``patch``: default size of a patch.
    """
    height, width = sides(config, "image_size", 224)
    size, other = sides(config, "patch_size", patch)
    if size != other:
        raise UserError(
            f"{config.source}: patch_size is {size} × {other}, but qkv supports only square patches; "
            "the size changes the map from pixels to vectors"
        )
    return Patches(
        patch=size,
        class_token=True,
        extra_tokens=extra_tokens,
        height=height,
        width=width,
        channels=config.integer("num_channels", 3),
        dropout=config.number("hidden_dropout_prob", 0.0),
    )


def sides(config: Config, key: str, default: int) -> tuple[int, int]:
    """Return (height, width) from a key whose value is one number for both, or a list of two. Raises ``UserError``."""
    if not isinstance(config.values.get(key), list):
        side = config.size(key, default)
        return side, side
    pair = config.items(key)
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise UserError(f"{config.source}: {key} is {quoted(pair)}, but it should be one size or [height, width]")
    return pair[0], pair[1]


def body(
    config: Config, head: Head, second: Any, embeds: Patches, residual: Residual | None = None, eps: float = 1e-12
) -> Model:
    """Build the spec of ViT's structure with this head, second branch and front end. ``eps``: default ε of norms."""
    norm = LayerNorm(eps=config.number("layer_norm_eps", eps))
    attention = Attention(
        num_heads=config.size("num_attention_heads", 12),
        mask=Full(),
        bias=config.flag("qkv_bias", True),
        output_bias=True,
        dropout=config.number("attention_probs_dropout_prob", 0.0),
    )
    block: dict[str, Any] = {} if residual is None else {"residual": residual}
    return Model(
        width=config.size("hidden_size", 768),
        num_layers=config.layers("num_hidden_layers", 12),
        context_length=embeds.num_positions or 1,
        frontend=embeds,
        blocks=(Block(branches=(attention, second), norm=norm, dropout=embeds.dropout, **block),),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def config(spec: Model, extra_tokens: int = 0) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not ViT's. Callers read them back to verify.

    extra_tokens: number of learned positions after the class token.
    """
    block, embeds = shape_of(spec)
    second = block.branches[-1] if block else None
    if not isinstance(second, FeedForward) or not isinstance(embeds, Patches) or embeds.extra_tokens != extra_tokens:
        return None
    values = keys(spec)
    sizes = {"intermediate_size": second.hidden_at(spec.width), "hidden_act": OUTWARD.get(second.activation)}
    return {**values, **sizes} if values else None


def keys(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ViT's structure except its feed-forward branch; None for another structure."""
    match shape_of(spec):
        case Block(branches=(Attention() as attention, _), norm=LayerNorm() as norm) as block, Patches() as embeds:
            size = trained_size(embeds)
        case _:
            return None
    if size is None:
        return None
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": attention.num_heads,
        "qkv_bias": attention.bias,
        "image_size": size[0] if size[0] == size[1] else list(size),
        "patch_size": embeds.patch,
        "num_channels": embeds.channels,
        "layer_norm_eps": norm.eps,
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": attention.dropout,
        "initializer_range": spec.init_std,
    }


def trained_size(embeds: Patches) -> tuple[int, int] | None:
    """Return (height, width) of the images that the front end's learned positions were trained for.

    Return None for other kinds of positions.
    """
    positions: Positions = embeds.positions
    if isinstance(positions, LearnedGrid) and tuple(positions.shape) != embeds.grid:
        return positions.shape[0] * embeds.patch, positions.shape[1] * embeds.patch
    if not isinstance(positions, Learned | LearnedGrid) or embeds.height is None or embeds.width is None:
        return None
    return embeds.height, embeds.width


def classifier(output: str, pooling: Any = "first", ignored: Reasons | None = None) -> Architecture:
    """Build an architecture with the head W x + b on the pooled vectors. ``output``: published name of the layer."""

    def read(config: Config) -> Head:
        return pooled_head(config, pooling=pooling)

    def write(head: Head) -> dict[str, Any] | None:
        fits = isinstance(head, ClassificationHead | RegressionHead) and head.pooling == pooling
        return problem_keys(head) if fits else None  # type: ignore[arg-type]

    return Architecture(read, write, (NameRule("head.output.*", f"{output}.*"),), ignored or {})


def mask(body: str) -> Reasons:
    """Return the token of masked patches, an unused tensor, with the reason. ``body``: prefix of the names in files."""
    return {f"{body}embeddings.mask_token": "token of masked patches, used in pretraining only"}


def no_registers(body: str) -> Reasons:
    """Return the register tensor with the reason for ignoring it: models without registers store it empty."""
    return {f"{body}embeddings.register_tokens": "empty, as the model has no registers"}


def unused(body: str) -> Reasons:
    """Return the unused tensors, pooler and token of masked patches, with the reasons."""
    return {**heads.pooler(body), **mask(body)}


VIT = Family(
    name="ViT",
    model_types=("vit",),
    architectures={
        "ViTForImageClassification": classifier("classifier", ignored=unused("vit.")),
        "ViTModel": heads.vectors(kept=unused("vit.")),
    },
    spec=spec,
    config=config,
    names=names("vit."),
    prefix="vit.",
    ignored_config=IGNORED_CONFIG,
)

register(VIT)
