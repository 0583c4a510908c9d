"""wav2vec 2.0 (Baevski et al. 2020), HuBERT (Hsu et al. 2021), WavLM (Chen et al. 2022), data2vec-audio and UniSpeech.

Strided convolutions over samples, a convolution that gives position vectors, then blocks of BERT's or GPT-2's order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import vectors, written_back
from qkv.interop.families.common.shape import shape_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV, Broadcast, Chained, WeightNorm
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import ClassificationHead, CTCHead, Head, VectorsHead
from qkv.spec.masks import Full
from qkv.spec.mixers.relative_attention import GatedBiasAttention
from qkv.spec.model import Block, Model
from qkv.spec.parts import LayerNorm, NoNorm, Norm
from qkv.spec.signals.sound import WaveConvolutions
from qkv.system.errors import UserError

_CHANNELS, _KERNELS, _STRIDES = (512,) * 7, (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)
POSITIONS = 1500
"""Positions for which a model is used by default: 30 seconds. There is no limit."""
EPS, _RATE = 1e-5, 0.05
"""Epsilon of norms, and default rate of masking in training."""
_PRETRAINING = "used in pretraining only"
_TRAINING = "settings of training"
IGNORED_CONFIG: Reasons = {
    **dict.fromkeys(
        (
            "num_codevectors_per_group",
            "num_codevector_groups",
            "contrastive_logits_temperature",
            "feat_quantizer_dropout",
            "num_negatives",
            "codevector_dim",
            "proj_codevector_dim",
            "diversity_loss_weight",
            "num_clusters",
            "replace_prob",
            "do_stable_layer_norm_pretraining",
        ),
        _PRETRAINING,
    ),
    **dict.fromkeys(
        (
            "apply_spec_augment",
            "mask_time_length",
            "mask_time_min_masks",
            "mask_feature_length",
            "mask_feature_min_masks",
            "mask_channel_length",
            "mask_channel_min_space",
            "mask_channel_other",
            "mask_channel_prob",
            "mask_channel_selection",
            "mask_time_min_space",
            "mask_time_other",
            "mask_time_selection",
            "ctc_loss_reduction",
            "ctc_zero_infinity",
            "activation_dropout",
            "feat_proj_dropout",
            "feat_extract_dropout",
            "final_dropout",
            "layerdrop",
            "gradient_checkpointing",
            "freeze_feat_extract_train",
            "no_mask_channel_overlap",
            "no_mask_time_overlap",
        ),
        _TRAINING,
    ),
    **dict.fromkeys(("tdnn_dim", "tdnn_kernel", "tdnn_dilation", "xvector_output_dim"), "part of another head"),
    **dict.fromkeys(("classifier_proj_size", "vocab_size", "use_weighted_layer_sum"), "part of another head"),
    **dict.fromkeys(
        ("adapter_kernel_size", "adapter_stride", "num_adapter_layers", "output_hidden_size"), "part of an adapter"
    ),
    "num_feat_extract_layers": "the number of entries of conv_dim",
    "num_ctc_classes": "not used by the published code",
    "feature_grad_mult": _TRAINING,
}


OLDER = {
    f"pos_conv_embed.conv.weight_{name}": f"pos_conv_embed.conv.parametrizations.weight.original{i}"
    for i, name in enumerate("gv")
}
"""Names of tensors in files of older versions."""


@dataclass(frozen=True)
class WaveForm:
    """Differences between the families of this structure.

    body: prefix of the names in files. stacked: True if the position vectors come from several convolutions with norms
    (data2vec). orders: True if the config chooses between the orders of blocks. bare_map: True if the norm before the
    map is optional (HuBERT). near: True if there are position vectors by convolutions.
    gated: True if attention has biases of distances with gates (WavLM).
    """

    body: str
    stacked: bool = False
    orders: bool = True
    bare_map: bool = False
    near: bool = True
    gated: bool = False


def frontend(config: Config, form: WaveForm, norm: Norm) -> WaveConvolutions:
    """Build the front end of a config; ``norm``: norm of its vectors."""
    channels, kernels, strides = (
        tuple(config.items(key)) if config.has(key) else default
        for key, default in (("conv_dim", _CHANNELS), ("conv_kernel", _KERNELS), ("conv_stride", _STRIDES))
    )
    config.fixed("feat_extract_activation", "gelu", "the activation of the convolutions")
    norms = "layer" if form.stacked else {"group": "first", "layer": "layer"}.get(_norm_name(config))
    if norms is None:
        raise UserError(f"{config.source}: feat_extract_norm is {_norm_name(config)!r}; qkv supports group and layer")
    near = config.size("num_conv_pos_embeddings", 5 if form.stacked else 128) if form.near else 0
    return WaveConvolutions.parse(
        {
            "channels": channels,
            "kernels": kernels,
            "strides": strides,
            "bias": config.flag("conv_bias", False),
            "norms": norms,
            "feature_norm": config.flag("feat_proj_layer_norm", True) if form.bare_map else True,
            "near": config.size("conv_pos_kernel_size", 19) if form.stacked else near,
            "near_layers": near if form.stacked else 1,
            **({"groups": config.size("num_conv_pos_embedding_groups", 16)} if form.near else {}),
            "stacked": form.stacked,
            "mask_vector": _masks(config, form),
            "norm": norm,
            "dropout": config.number("hidden_dropout", 0.1),
        },
        config.source,
    )


def _gated(config: Config, heads: dict[str, Any]) -> GatedBiasAttention:
    count, furthest = config.size("num_buckets", 320), config.size("max_bucket_distance", 800)
    return GatedBiasAttention(mask=Full(), num_buckets=count, max_distance=furthest, **heads)


def _masks(config: Config, form: WaveForm) -> bool:
    """Return True if there is a vector of masked positions. Without weights, the rates of masking tell."""
    if config.held is not None:
        return any(config.beside(f"{body}masked_spec_embed") for body in ("", form.body))
    return max(config.number("mask_time_prob", _RATE), config.number("mask_feature_prob", 0.0)) > 0


def _norm_name(config: Config) -> str:
    return config.word("feat_extract_norm", "group")


def _spec(config: Config, head: Head, form: WaveForm) -> Model:
    """Build the spec: D = hidden_size, num_hidden_layers blocks, intermediate_size hidden features."""
    config.fixed("add_adapter", False, "the positions of the output")
    config.fixed("adapter_attn_dim", None, "the blocks")
    config.fixed("conv_pos_batch_norm", False, "the position vectors")
    config.fixed("layer_norm_eps", EPS, "the norms")
    stable = config.flag("do_stable_layer_norm", False) if form.orders else False
    norm = LayerNorm(eps=EPS)
    heads = {"num_heads": config.size("num_attention_heads", 12), "dropout": config.number("attention_dropout", 0.1)}
    feed_forward = FeedForward(
        hidden=config.size("intermediate_size", 3072), activation=config.word("hidden_act", "gelu", INWARD)
    )
    block = Block(
        branches=(_gated(config, heads) if form.gated else Attention(mask=Full(), **heads), feed_forward),
        order="pre" if stable else "post",
        norm=norm,
        dropout=config.number("hidden_dropout", 0.1),
    )
    return Model(
        width=config.size("hidden_size", 768),
        num_layers=config.layers("num_hidden_layers", 12),
        context_length=config.size("max_position_embeddings", POSITIONS),
        frontend=frontend(config, form, NoNorm() if stable else norm),
        blocks=(block,),
        norm=norm if stable else NoNorm(),
        head=head,
        init_std=config.number("initializer_range", 0.02),
    )


def _config(spec: Model, form: WaveForm) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is another. Callers read them back to verify."""
    match shape_of(spec):
        case (
            Block(branches=(Attention() | GatedBiasAttention() as attention, FeedForward() as second)) as block,
            WaveConvolutions() as embeds,
        ):
            pass
        case _:
            return None
    if embeds.stacked != form.stacked or embeds.norms == "none" or not embeds.near:
        return None
    order = {"do_stable_layer_norm": block.order == "pre"} if form.orders else {}
    biases = {}
    if isinstance(attention, GatedBiasAttention):
        biases = {"num_buckets": attention.num_buckets, "max_bucket_distance": attention.max_distance}
    return {
        "hidden_size": spec.width,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": attention.num_heads,
        "intermediate_size": second.hidden_at(spec.width),
        "hidden_act": OUTWARD.get(second.activation),
        "hidden_dropout": block.dropout,
        "attention_dropout": attention.dropout,
        "initializer_range": spec.init_std,
        "max_position_embeddings": spec.context_length,
        **front_keys(embeds, form),
        **order,
        **biases,
    }


def front_keys(embeds: WaveConvolutions, form: WaveForm) -> dict[str, Any]:
    """Return the config.json keys of the front end."""
    near = {"num_conv_pos_embeddings": embeds.near, "num_conv_pos_embedding_groups": embeds.groups}
    if form.stacked:
        near |= {"conv_pos_kernel_size": embeds.near, "num_conv_pos_embeddings": embeds.near_layers}
    return {
        "conv_dim": list(embeds.channels),
        "conv_kernel": list(embeds.kernels),
        "conv_stride": list(embeds.strides),
        "conv_bias": embeds.bias,
        "num_feat_extract_layers": len(embeds.channels),
        **({} if form.stacked else {"feat_extract_norm": "group" if embeds.norms == "first" else "layer"}),
        **({"feat_proj_layer_norm": embeds.feature_norm} if form.bare_map else {}),
        **(near if form.near else {"num_conv_pos_embedding_groups": 1}),
        "mask_time_prob": _RATE if embeds.mask_vector else 0.0,
    }


def front_names(body: str, form: WaveForm) -> tuple[NameRule, ...]:
    """Return the name table of the front end; ``body``: prefix of the names in files."""
    conv = "encoder.pos_conv_embed.conv"
    weight = tuple(f"{conv}.parametrizations.weight.original{i}" for i in range(2))
    near = (
        (NameRule("frontend.near.{index}.*", "encoder.pos_conv_embed.layers.{index}.conv.*"),)
        if form.stacked
        else (
            NameRule("frontend.near.0.weight", weight, WeightNorm()),
            NameRule("frontend.near.0.bias", f"{conv}.bias"),
        )
    )
    rows = (
        NameRule("frontend.convolutions.{index}.*", "feature_extractor.conv_layers.{index}.conv.*"),
        NameRule("frontend.norms.{index}.*", "feature_extractor.conv_layers.{index}.layer_norm.*"),
        NameRule("frontend.feature_norm.*", "feature_projection.layer_norm.*"),
        NameRule("frontend.map.*", "feature_projection.projection.*"),
        NameRule("frontend.masked", "masked_spec_embed"),
        *near,
    )
    return tuple(row.below(body) for row in rows)


_OF_HEADS = Chained((Broadcast(), Broadcast(axis=-1, axes=2)))
"""One number for each head, published as (1, H, 1, 1)."""


def _names(body: str, form: WaveForm) -> tuple[NameRule, ...]:
    layer = "encoder.layers.{layer}"
    rows = (
        NameRule("frontend.norm.*", "encoder.layer_norm.*"),
        NameRule("norm.*", "encoder.layer_norm.*"),
        NameRule("blocks.{layer}.branches.0.norm.*", f"{layer}.layer_norm.*"),
        NameRule("blocks.{layer}.branches.1.norm.*", f"{layer}.final_layer_norm.*"),
        NameRule(
            "blocks.{layer}.branches.0.body.qkv.*",
            tuple(f"{layer}.attention.{part}_proj.*" for part in ("q", "k", "v")),
            QKV,
        ),
        NameRule("blocks.{layer}.branches.0.body.output.*", f"{layer}.attention.out_proj.*"),
        NameRule("blocks.{layer}.branches.0.body.gate.*", f"{layer}.attention.gru_rel_pos_linear.*"),
        NameRule("blocks.{layer}.branches.0.body.factor", f"{layer}.attention.gru_rel_pos_const", _OF_HEADS),
        NameRule("blocks.{layer}.branches.0.body.buckets.table", f"{layer}.attention.rel_attn_embed.weight"),
        NameRule("blocks.{layer}.branches.1.body.up.*", f"{layer}.feed_forward.intermediate_dense.*"),
        NameRule("blocks.{layer}.branches.1.body.down.*", f"{layer}.feed_forward.output_dense.*"),
    )
    return (*front_names(body, form), *(row.below(body) for row in rows))


def _read_ctc(config: Config) -> Head:
    blank = config.integer("pad_token_id", 0)
    return CTCHead(num_classes=config.size("vocab_size", 32), blank=blank)


def _write_ctc(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, CTCHead) or head != CTCHead(num_classes=head.num_classes, blank=head.blank):
        return None
    return {"vocab_size": head.num_classes, "pad_token_id": head.blank}


def ctc(unused: Reasons | None = None, keys: tuple[str, ...] = ()) -> Architecture:
    """Build the architecture with the head of CTC, whose blank is the published padding token.

    ``unused``: tensors that an export writes back unread, with the config keys ``keys``.
    """
    rows, back = (NameRule("head.output.*", "lm_head.*"),), written_back(unused or {})
    return Architecture(_read_ctc, _write_ctc, rows, kept=back, kept_config=keys)


def _read_classes(config: Config) -> Head:
    config.fixed("use_weighted_layer_sum", False, "the vectors that the head reads")
    width = config.size("classifier_proj_size", 256)
    count = len(config.table("id2label").values) if config.has("id2label") else config.size("num_labels", 2)
    return ClassificationHead(num_classes=count, hidden=width, activation="identity", pooling="mean")


def _write_classes(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, ClassificationHead) or head.hidden is None:
        return None
    return {"classifier_proj_size": head.hidden, "num_labels": head.num_classes}


def classes(unused: Reasons | None = None, keys: tuple[str, ...] = ()) -> Architecture:
    """Build the architecture of a classifier of the mean vector; ``unused``, ``keys``: as in ``ctc``."""
    rows = (NameRule("head.hidden.*", "projector.*"), NameRule("head.output.*", "classifier.*"))
    return Architecture(_read_classes, _write_classes, rows, kept=written_back(unused or {}), kept_config=keys)


def pretraining(ignored: Reasons | None = None) -> Architecture:
    """Build the architecture of a pretrained model, whose quantiser is not read; ``ignored``: other unused tensors."""
    parts = {f"{part}.*": f"part of the contrastive loss, {_PRETRAINING}" for part in ("project_hid", "project_q")}
    quantiser = {"quantizer.*": f"vector quantiser, {_PRETRAINING}"}
    return Architecture(lambda config: VectorsHead(), lambda head: None, (), {**parts, **quantiser, **(ignored or {})})


def _family(name: str, kind: str, stem: str, form: WaveForm, pretrains: bool = False, base: str = "") -> Family:
    return Family(
        name=name,
        model_types=(kind,),
        architectures={
            f"{stem}ForCTC": ctc(),
            f"{stem}Model": vectors(),
            f"{stem}ForSequenceClassification": classes(),
            **({f"{stem}ForPreTraining": pretraining()} if pretrains else {}),
        },
        spec=lambda config, head: _spec(config, head, form),
        config=lambda spec: _config(spec, form),
        names=_names(form.body, form),
        prefix=form.body,
        ignored_config=IGNORED_CONFIG,
        older=OLDER,
        base=base,
    )


WAV2VEC2 = _family("wav2vec 2.0", "wav2vec2", "Wav2Vec2", WaveForm("wav2vec2."), pretrains=True)
HUBERT = _family("HuBERT", "hubert", "Hubert", WaveForm("hubert.", bare_map=True))
WAVLM = _family("WavLM", "wavlm", "WavLM", WaveForm("wavlm.", gated=True))
DATA2VEC = _family(
    "data2vec-audio", "data2vec-audio", "Data2VecAudio", WaveForm("data2vec_audio.", stacked=True, orders=False)
)
UNISPEECH = _family("UniSpeech", "unispeech", "UniSpeech", WaveForm("unispeech."), base=WAV2VEC2.name)
UNISPEECH_SAT = _family(
    "UniSpeech-SAT", "unispeech-sat", "UniSpeechSat", WaveForm("unispeech_sat."), base=WAV2VEC2.name
)

register(WAV2VEC2, HUBERT, WAVLM, DATA2VEC, UNISPEECH, UNISPEECH_SAT)
