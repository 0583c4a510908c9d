"""Parakeet (NVIDIA 2024): Fast Conformer (Rekesh et al. 2023) over log-mel frames, with the head of CTC.

Convolutions in 2-D leave every eighth frame; blocks are those of the Conformer, with relative positions.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import vectors
from qkv.interop.families.common.shape import shape_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import ADJACENT_FEATURES, BY_HEAD, QKV, TAPS, WITH_COUNT, Broadcast
from qkv.interop.mapping.family import COMMON, Architecture, Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.registry import register
from qkv.spec.branches import FeedForward
from qkv.spec.heads import CTCHead, Head
from qkv.spec.masks import Full
from qkv.spec.mixers.gated_convolution import ConformerConvolution
from qkv.spec.mixers.relative_attention import RelativeAttention
from qkv.spec.model import Block, Model
from qkv.spec.parts import LayerNorm, NoNorm
from qkv.spec.signals.stems import MelSubsampling
from qkv.system.errors import UserError

_HALF = (0.5, 1.0, 1.0, 0.5)
_NESTED = "encoder_config"
_MOST = 8
"""Largest number of convolutions of the subsampling."""
_TRAINING: Reasons = {
    **dict.fromkeys(("layerdrop", "dropout_positions"), "settings of training"),
    "num_key_value_heads": "equal to num_attention_heads in the published code",
}


def _spec_of_encoder(config: Config, head: Head) -> Model:
    """Build the spec: D = hidden_size, num_hidden_layers blocks, intermediate_size hidden features."""
    norm, bias = LayerNorm(), config.flag("attention_bias", True)
    activation = config.word("hidden_act", "silu", INWARD)
    config.fixed("head_dim", None, "the features of a head")
    forward = FeedForward(
        hidden=config.size("intermediate_size", 4096),
        activation=activation,
        bias=bias,
        dropout=config.number("activation_dropout", 0.1),
    )
    attention = RelativeAttention(
        num_heads=config.size("num_attention_heads", 8),
        mask=Full(),
        bias=bias,
        dropout=config.number("attention_dropout", 0.1),
    )
    convolution = ConformerConvolution(
        kernel_size=_odd(config, "conv_kernel_size", 9),
        activation=activation,
        bias=config.flag("convolution_bias", True),
    )
    return Model(
        width=config.size("hidden_size", 1024),
        num_layers=config.layers("num_hidden_layers", 24),
        context_length=config.integer("max_position_embeddings", 5000),
        frontend=_frontend(config),
        blocks=(Block(branches=(forward, attention, convolution, forward), factors=_HALF, norm=norm, end_norm=norm),),
        norm=NoNorm(),
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def _frontend(config: Config) -> MelSubsampling:
    """Read the front end. Raises ``UserError`` for a factor that is no power of 2, by which the code counts layers."""
    factor = config.size("subsampling_factor", 8)
    count = factor.bit_length() - 1
    if factor != 1 << count or not 1 <= count <= _MOST:
        raise UserError(
            f"{config.source}: subsampling_factor is {factor}, but qkv supports powers of 2 from 2 to {1 << _MOST}"
        )
    kernel, stride = (
        config.size(f"subsampling_conv_{key}", usual) for key, usual in (("kernel_size", 3), ("stride", 2))
    )
    return MelSubsampling.parse(
        {
            "bins": config.size("num_mel_bins", 80),
            "channels": config.size("subsampling_conv_channels", 256),
            "kernels": (kernel,) * count,
            "strides": (stride,) * count,
            "scale": config.flag("scale_input", True),
            "dropout": config.number("dropout", 0.1),
        },
        config.source,
    )


def _odd(config: Config, key: str, usual: int) -> int:
    """Read a kernel size. Raises ``UserError`` for an even one, with which the published code gives other lengths."""
    size = config.size(key, usual)
    if size % 2 == 0:
        raise UserError(f"{config.source}: {key} is {size}, which has no middle; qkv supports odd sizes")
    return size


def _config_of_encoder(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is another. Callers read them back to verify."""
    match shape_of(spec):
        case (
            Block(
                branches=(
                    FeedForward() as forward,
                    RelativeAttention() as attention,
                    ConformerConvolution() as convolution,
                    FeedForward(),
                )
            ),
            MelSubsampling() as embeds,
        ):
            pass
        case _:
            return None
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": attention.num_heads,
        "intermediate_size": forward.hidden_at(spec.width),
        "hidden_act": OUTWARD.get(forward.activation),
        "attention_bias": attention.bias,
        "convolution_bias": convolution.bias,
        "conv_kernel_size": convolution.kernel_size,
        "subsampling_factor": 1 << len(embeds.kernels),
        "subsampling_conv_channels": embeds.channels,
        "subsampling_conv_kernel_size": embeds.kernels[0],
        "subsampling_conv_stride": embeds.strides[0],
        "num_mel_bins": embeds.bins,
        "scale_input": embeds.scale,
        "dropout": embeds.dropout,
        "activation_dropout": forward.dropout,
        "attention_dropout": attention.dropout,
        "max_position_embeddings": spec.context_length,
        "initializer_range": spec.init_std,
    }


def _spec(config: Config, head: Head) -> Model:
    """Build the spec of the whole model from ``encoder_config``."""
    table = config.table(_NESTED)
    spec = _spec_of_encoder(table, head)
    table.leave_unread({**COMMON, **_TRAINING})
    return spec


def _config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``, nested; None if its structure is another."""
    keys = _config_of_encoder(spec)
    return None if keys is None else {_NESTED: {"model_type": "parakeet_encoder", **keys}}


def _names(body: str) -> tuple[NameRule, ...]:
    block, layer = "blocks.{layer}.branches", "layers.{layer}"
    inside, conv = f"{block}.2.body", f"{layer}.conv"
    count = f"{conv}.norm.running_var", f"{conv}.norm.num_batches_tracked"
    forward = (
        (f"{block}.{i}.{ours}.*", f"{layer}.{theirs}.*")
        for i, number in ((0, 1), (3, 2))
        for ours, theirs in (
            ("norm", f"norm_feed_forward{number}"),
            ("body.up", f"feed_forward{number}.linear1"),
            ("body.down", f"feed_forward{number}.linear2"),
        )
    )
    # Of the layers of the subsampling, 0 is a convolution, 1 ReLU, then each stage has three: two and ReLU.
    stages = (pair for i in range(1, _MOST) for pair in ((f"convolutions.{i}", 3 * i - 1), (f"mixes.{i - 1}", 3 * i)))
    rows = (
        NameRule("frontend.convolutions.0.*", "subsampling.layers.0.*"),
        *(NameRule(f"frontend.{ours}.*", f"subsampling.layers.{index}.*") for ours, index in stages),
        NameRule("frontend.map.*", "subsampling.linear.*"),
        *(NameRule(*pair) for pair in forward),
        NameRule(f"{block}.1.norm.*", f"{layer}.norm_self_att.*"),
        NameRule(f"{block}.1.body.qkv.*", tuple(f"{layer}.self_attn.{part}_proj.*" for part in "qkv"), QKV),
        NameRule(f"{block}.1.body.output.*", f"{layer}.self_attn.o_proj.*"),
        NameRule(f"{block}.1.body.position.weight", f"{layer}.self_attn.relative_k_proj.weight", ADJACENT_FEATURES),
        NameRule(f"{block}.1.body.content_bias", f"{layer}.self_attn.bias_u", BY_HEAD),
        NameRule(f"{block}.1.body.position_bias", f"{layer}.self_attn.bias_v", BY_HEAD),
        NameRule(f"{block}.2.norm.*", f"{layer}.norm_conv.*"),
        NameRule(f"{inside}.input.weight", f"{conv}.pointwise_conv1.weight", Broadcast(axis=-1)),
        NameRule(f"{inside}.input.bias", f"{conv}.pointwise_conv1.bias"),
        NameRule(f"{inside}.weight", f"{conv}.depthwise_conv.weight", TAPS),
        NameRule(f"{inside}.bias", f"{conv}.depthwise_conv.bias"),
        NameRule(f"{inside}.norm.*", f"{conv}.norm.*"),
        NameRule(f"{inside}.norm.running_mean", f"{conv}.norm.running_mean"),
        NameRule(f"{inside}.norm.running_var", count, WITH_COUNT),
        NameRule(f"{inside}.output.weight", f"{conv}.pointwise_conv2.weight", Broadcast(axis=-1)),
        NameRule(f"{inside}.output.bias", f"{conv}.pointwise_conv2.bias"),
        NameRule("blocks.{layer}.end_norm.*", f"{layer}.norm_out.*"),
    )
    return tuple(row.below(body) for row in rows)


def _read_ctc(config: Config) -> Head:
    return CTCHead(num_classes=config.size("vocab_size", 1025), blank=config.integer("pad_token_id", 1024))


def _write_ctc(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, CTCHead) or head != CTCHead(num_classes=head.num_classes, blank=head.blank):
        return None
    return {"vocab_size": head.num_classes, "pad_token_id": head.blank}


_BODY = "encoder."

PARAKEET_CTC = Family(
    name="Parakeet CTC",
    model_types=("parakeet_ctc",),
    architectures={
        "ParakeetForCTC": Architecture(
            _read_ctc,
            _write_ctc,
            (
                NameRule("head.output.weight", "ctc_head.weight", Broadcast(axis=-1)),
                NameRule("head.output.bias", "ctc_head.bias"),
            ),
        )
    },
    spec=_spec,
    config=_config,
    names=_names(_BODY),
    prefix=_BODY,
    ignored_config={
        **dict.fromkeys(("ctc_loss_reduction", "ctc_zero_infinity"), "settings of training"),
        "initializer_range": "given by the encoder's",
    },
    typical={"vocab_size": 1025},
)
PARAKEET_ENCODER = Family(
    name="Fast Conformer",
    model_types=("parakeet_encoder",),
    architectures={"ParakeetEncoder": vectors()},
    spec=_spec_of_encoder,
    config=_config_of_encoder,
    names=_names(_BODY),
    prefix=_BODY,
    ignored_config=_TRAINING,
    typical={
        "conv_kernel_size": 9,
        "subsampling_factor": 8,
        "subsampling_conv_kernel_size": 3,
        "subsampling_conv_stride": 2,
    },
)

register(PARAKEET_CTC, PARAKEET_ENCODER)
