"""wav2vec 2.0 with Conformer blocks (Gulati et al. 2020): half feed-forward steps, attention and convolution between.

The published position convolution has weights, but is not computed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import vectors
from qkv.interop.families.common.shape import shape_of
from qkv.interop.families.sound.wav2vec2 import (
    EPS,
    IGNORED_CONFIG,
    OLDER,
    POSITIONS,
    WaveForm,
    classes,
    ctc,
    front_keys,
    front_names,
    frontend,
    pretraining,
)
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import ADJACENT_FEATURES, BY_HEAD, QKV, TAPS, WITH_COUNT, Broadcast
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.registry import register
from qkv.spec.branches import FeedForward
from qkv.spec.heads import Head
from qkv.spec.masks import Full
from qkv.spec.mixers.gated_convolution import ConformerConvolution
from qkv.spec.mixers.relative_attention import RelativeAttention
from qkv.spec.model import Block, Model
from qkv.spec.parts import LayerNorm, NoNorm
from qkv.spec.signals.sound import WaveConvolutions

_FORM = WaveForm("wav2vec2_conformer.", orders=False, near=False)
_UNUSED_KEYS = "num_conv_pos_embeddings", "num_conv_pos_embedding_groups"
_HALF = (0.5, 1.0, 1.0, 0.5)
_IGNORED: Reasons = {
    **IGNORED_CONFIG,
    **dict.fromkeys(_UNUSED_KEYS, "weights that are not used"),
    "conformer_conv_dropout": "settings of training",
    "rotary_embedding_base": "part of other positions",
    "max_source_positions": "no limit: further positions are computed",
}


def _spec(config: Config, head: Head) -> Model:
    """Build the spec: D = hidden_size, num_hidden_layers blocks, intermediate_size hidden features."""
    config.fixed("position_embeddings_type", "relative", "the positions")
    config.fixed("add_adapter", False, "the positions of the output")
    config.fixed("layer_norm_eps", EPS, "the norms")
    norm, activation = LayerNorm(eps=EPS), config.word("hidden_act", "gelu", INWARD)
    forward = FeedForward(hidden=config.size("intermediate_size", 3072), activation=activation)
    attention = RelativeAttention(
        num_heads=config.size("num_attention_heads", 12),
        mask=Full(),
        bias=True,
        dropout=config.number("attention_dropout", 0.1),
    )
    convolution = ConformerConvolution(
        kernel_size=config.size("conv_depthwise_kernel_size", 31), activation=activation, bias=False
    )
    block = Block(
        branches=(forward, attention, convolution, forward),
        factors=_HALF,
        norm=norm,
        end_norm=norm,
        dropout=config.number("hidden_dropout", 0.1),
    )
    return Model(
        width=config.size("hidden_size", 768),
        num_layers=config.layers("num_hidden_layers", 12),
        context_length=config.size("max_position_embeddings", POSITIONS),
        frontend=frontend(config, _FORM, NoNorm()),
        blocks=(block,),
        norm=norm,
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def _config(spec: Model) -> dict[str, Any] | None:
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
            ) as block,
            WaveConvolutions() as embeds,
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
        "hidden_dropout": block.dropout,
        "attention_dropout": attention.dropout,
        "conv_depthwise_kernel_size": convolution.kernel_size,
        "initializer_range": spec.init_std,
        "max_position_embeddings": spec.context_length,
        "position_embeddings_type": "relative",
        **front_keys(embeds, _FORM),
    }


def _names(body: str) -> tuple[NameRule, ...]:
    block, layer = "blocks.{layer}.branches", "encoder.layers.{layer}"
    inside, conv = f"{block}.2.body", f"{layer}.conv_module"
    count = f"{conv}.batch_norm.running_var", f"{conv}.batch_norm.num_batches_tracked"
    forward = (
        (f"{block}.{i}.{ours}.*", f"{layer}.ffn{number}{theirs}.*")
        for i, number in ((0, 1), (3, 2))
        for ours, theirs in (
            ("norm", "_layer_norm"),
            ("body.up", ".intermediate_dense"),
            ("body.down", ".output_dense"),
        )
    )
    rows = (
        NameRule("norm.*", "encoder.layer_norm.*"),
        *(NameRule(*pair) for pair in forward),
        NameRule(f"{block}.1.norm.*", f"{layer}.self_attn_layer_norm.*"),
        NameRule(f"{block}.1.body.qkv.*", tuple(f"{layer}.self_attn.linear_{part}.*" for part in "qkv"), QKV),
        NameRule(f"{block}.1.body.output.*", f"{layer}.self_attn.linear_out.*"),
        NameRule(f"{block}.1.body.position.weight", f"{layer}.self_attn.linear_pos.weight", ADJACENT_FEATURES),
        NameRule(f"{block}.1.body.content_bias", f"{layer}.self_attn.pos_bias_u", BY_HEAD),
        NameRule(f"{block}.1.body.position_bias", f"{layer}.self_attn.pos_bias_v", BY_HEAD),
        NameRule(f"{block}.2.norm.*", f"{conv}.layer_norm.*"),
        NameRule(f"{inside}.input.weight", f"{conv}.pointwise_conv1.weight", Broadcast(axis=-1)),
        NameRule(f"{inside}.weight", f"{conv}.depthwise_conv.weight", TAPS),
        NameRule(f"{inside}.norm.*", f"{conv}.batch_norm.*"),
        NameRule(f"{inside}.norm.running_mean", f"{conv}.batch_norm.running_mean"),
        NameRule(f"{inside}.norm.running_var", count, WITH_COUNT),
        NameRule(f"{inside}.output.weight", f"{conv}.pointwise_conv2.weight", Broadcast(axis=-1)),
        NameRule("blocks.{layer}.end_norm.*", f"{layer}.final_layer_norm.*"),
    )
    return (*front_names(body, _FORM), *(row.below(body) for row in rows))


_UNUSED: Reasons = {
    f"{_FORM.body}encoder.pos_conv_embed.conv.*": "position convolution, which the published code does not compute"
}

WAV2VEC2_CONFORMER = Family(
    name="wav2vec 2.0 Conformer",
    model_types=("wav2vec2-conformer",),
    architectures={
        "Wav2Vec2ConformerForCTC": ctc(_UNUSED, _UNUSED_KEYS),
        "Wav2Vec2ConformerModel": replace(vectors(kept=_UNUSED), kept_config=_UNUSED_KEYS),
        "Wav2Vec2ConformerForSequenceClassification": classes(_UNUSED, _UNUSED_KEYS),
        "Wav2Vec2ConformerForPreTraining": pretraining(_UNUSED),
    },
    spec=_spec,
    config=_config,
    names=_names(_FORM.body),
    prefix=_FORM.body,
    ignored_config=_IGNORED,
    older=OLDER,
)

register(WAV2VEC2_CONFORMER)
