"""DINOv3 (Siméoni et al. 2025): ViT with 2-D RoPE of the patches, registers, and LayerScale.

Keys have no bias. Published models have no head: their outputs are the final vectors.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.shape import shape_of
from qkv.interop.families.images import vit
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, QKV, Broadcast
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.masks import Full
from qkv.spec.model import Block, Model
from qkv.spec.parts import LayerNorm, NoPositions, Rope2D, Scaled
from qkv.spec.signals.images import Patches
from qkv.system.errors import UserError

_SLOT, _LAYER = "blocks.{layer}.branches.", "layer.{layer}."
NAMES = (
    NameRule("frontend.map.*", "embeddings.patch_embeddings.*"),
    NameRule("frontend.first", "embeddings.cls_token", Broadcast(axes=2)),
    NameRule("frontend.registers", "embeddings.register_tokens", Broadcast()),
    NameRule(f"{_SLOT}0.norm.*", f"{_LAYER}norm1.*"),
    NameRule(f"{_SLOT}0.body.qkv.*", tuple(f"{_LAYER}attention.{part}_proj.*" for part in "qkv"), QKV),
    NameRule(f"{_SLOT}0.body.query_bias", f"{_LAYER}attention.q_proj.bias"),
    NameRule(f"{_SLOT}0.body.value_bias", f"{_LAYER}attention.v_proj.bias"),
    NameRule(f"{_SLOT}0.body.output.*", f"{_LAYER}attention.o_proj.*"),
    NameRule(f"{_SLOT}0.residual.weight", f"{_LAYER}layer_scale1.lambda1"),
    NameRule(f"{_SLOT}1.norm.*", f"{_LAYER}norm2.*"),
    NameRule(f"{_SLOT}1.body.up.*", f"{_LAYER}mlp.up_proj.*"),
    NameRule(f"{_SLOT}1.body.gate_up.*", (f"{_LAYER}mlp.gate_proj.*", f"{_LAYER}mlp.up_proj.*"), PAIR),
    NameRule(f"{_SLOT}1.body.down.*", f"{_LAYER}mlp.down_proj.*"),
    NameRule(f"{_SLOT}1.residual.weight", f"{_LAYER}layer_scale2.lambda1"),
    NameRule("norm.*", "norm.*"),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of DINOv3; positions are the coordinates of patches relative to the image."""
    norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-5))
    network = GatedFeedForward if config.flag("use_gated_mlp", False) else FeedForward
    second = network(
        hidden=config.size("intermediate_size", 1536),
        activation=config.word("hidden_act", "gelu", INWARD),
        bias=config.flag("mlp_bias", True),
    )
    embeds = vit.frontend(config).changed(
        positions=NoPositions(), dropout=0.0, registers=config.integer("num_register_tokens", 0)
    )
    return Model(
        width=config.size("hidden_size", 384),
        num_layers=config.layers("num_hidden_layers", 12),
        context_length=embeds.num_positions or 1,
        frontend=embeds,
        blocks=(
            Block(
                branches=(_attention(config), second),
                norm=norm,
                residual=Scaled(initial=config.number("layerscale_value", 1.0)),
                drop_path=config.number("drop_path_rate", 0.0),
            ),
        ),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def _attention(config: Config) -> Attention:
    query, key, value = (
        config.flag(f"{name}_bias", default) for name, default in (("query", True), ("key", False), ("value", True))
    )
    if query != value or key > query:
        raise UserError(
            f"{config.source}: query_bias is {query}, key_bias {key} and value_bias {value}, but qkv supports a bias "
            "of all three, of queries and values, or of none"
        )
    return Attention(
        num_heads=config.size("num_attention_heads", 6),
        mask=Full(),
        bias=query,
        key_bias=key or not query,
        output_bias=config.flag("proj_bias", True),
        relative=Rope2D(base=config.number("rope_theta", 100.0), normalised=True),
        dropout=config.number("attention_dropout", 0.0),
    )


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not DINOv3's. Callers read them back to verify."""
    match shape_of(spec):
        case (
            Block(
                branches=(
                    Attention(relative=Rope2D() as rope) as attention,
                    (FeedForward() | GatedFeedForward()) as network,
                ),
                norm=LayerNorm() as norm,
                residual=Scaled() as residual,
            ) as block,
            Patches(height=int() as height, width=int() as width) as embeds,
        ):
            return {
                "hidden_size": spec.width,
                "num_hidden_layers": len(spec.layers),
                "num_attention_heads": attention.num_heads,
                "query_bias": attention.bias,
                "key_bias": attention.bias and attention.key_bias,
                "value_bias": attention.bias,
                "proj_bias": attention.ends_with_bias,
                "rope_theta": rope.base,
                "attention_dropout": attention.dropout,
                "intermediate_size": network.hidden_at(spec.width),
                "hidden_act": OUTWARD[network.activation],
                "mlp_bias": network.bias,
                "use_gated_mlp": isinstance(network, GatedFeedForward),
                "layer_norm_eps": norm.eps,
                "layerscale_value": residual.initial,
                "drop_path_rate": block.drop_path,
                "image_size": height if height == width else [height, width],
                "patch_size": embeds.patch,
                "num_channels": embeds.channels,
                "num_register_tokens": embeds.registers,
                "initializer_range": spec.init_std,
            }
        case _:
            return None


DINOV3 = Family(
    name="DINOv3",
    model_types=("dinov3_vit",),
    architectures={"DINOv3ViTModel": heads.vectors(kept=vit.mask(""))},
    spec=spec,
    config=config,
    names=NAMES,
    ignored=vit.no_registers(""),
    older={"model.layer.": "layer."},
    ignored_config={
        **dict.fromkeys(
            ("pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale"), "random change of positions in training"
        ),
        **dict.fromkeys(
            ("out_features", "out_indices", "stage_names", "apply_layernorm", "reshape_hidden_states"),
            "output format of a backbone",
        ),
        "return_class_token": "output format of a backbone",
    },
)

register(DINOV3)
