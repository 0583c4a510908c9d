"""T5 (Raffel et al. 2020), mT5 (Xue et al. 2021) and UMT5 (Chung et al. 2023): pre-norm encoder–decoders without
biases.

Scores are unscaled and have learned relative biases: one table per stack, in UMT5 one per layer. T5 1.1, Flan-T5 and T0
have a gated feed-forward and an untied head. The encoder may be published alone.

In training, transformers also applies dropout to the outputs of the final norms.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import body
from qkv.interop.families.common.shape import shape_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import COPIED, PAIR, QKV
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward, GatedFeedForward
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Model, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import NoPositions, RMSNorm, T5Buckets
from qkv.system.errors import UserError, nearest


def _stack(ours: str, theirs: str, last: int) -> tuple[NameRule, ...]:
    """Return the name table of the blocks of one stack.

    ``ours`` and ``theirs``: prefixes in qkv and in files; ``last``: index of the feed-forward among a block's branches.
    """
    slot, layer = f"{ours}blocks.{{layer}}.branches.", f"{theirs}.block.{{layer}}.layer."
    attention, feed_forward = f"{layer}0.SelfAttention.", f"{layer}{last}.DenseReluDense."
    return (
        NameRule(f"{slot}0.norm.weight", f"{layer}0.layer_norm.weight"),
        NameRule(
            f"{slot}0.body.qkv.weight", (f"{attention}q.weight", f"{attention}k.weight", f"{attention}v.weight"), QKV
        ),
        NameRule(f"{slot}0.body.output.weight", f"{attention}o.weight"),
        NameRule(f"{slot}0.body.relative.table", f"{attention}relative_attention_bias.weight"),
        NameRule(f"{slot}{last}.norm.weight", f"{layer}{last}.layer_norm.weight"),
        NameRule(f"{slot}{last}.body.up.weight", f"{feed_forward}wi.weight"),
        NameRule(
            f"{slot}{last}.body.gate_up.weight", (f"{feed_forward}wi_0.weight", f"{feed_forward}wi_1.weight"), PAIR
        ),
        NameRule(f"{slot}{last}.body.down.weight", f"{feed_forward}wo.weight"),
        NameRule(f"{ours}norm.weight", f"{theirs}.final_layer_norm.weight"),
    )


def _alone(spec: Model) -> bool:
    return spec.encoder is None


_SLOT, _CROSS = "blocks.{layer}.branches.1.", "decoder.block.{layer}.layer.1.EncDecAttention."

NAMES = (
    *(row._replace(where=_alone) for row in _stack("", "encoder", 1)),
    NameRule("frontend.table", "shared.weight"),
    NameRule("encoder.frontend.table", ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), COPIED),
    *_stack("encoder.", "encoder", 1),
    *_stack("", "decoder", 2),
    NameRule(_SLOT + "norm.weight", "decoder.block.{layer}.layer.1.layer_norm.weight"),
    NameRule(_SLOT + "body.query.weight", _CROSS + "q.weight"),
    NameRule(_SLOT + "body.memory.weight", (_CROSS + "k.weight", _CROSS + "v.weight"), PAIR),
    NameRule(_SLOT + "body.output.weight", _CROSS + "o.weight"),
)


def spec(config: Config, head: Head, shared: bool = True, network: FeedForward | None = None) -> Model:
    """Build the spec of T5: D = d_model, num_heads heads of d_kv features, d_ff hidden features.

    The decoder may have another number of layers than the encoder. ``shared``: one bias table per stack, not one per
    layer. ``network``: feed-forward network; default: as in the config.
    """
    heads, head_dim, dropout = config.size("num_heads", 8), config.size("d_kv", 64), config.number("dropout_rate", 0.1)
    norm = RMSNorm(eps=config.number("layer_norm_epsilon", 1e-6))
    sizes = {"num_heads": heads, "head_dim": head_dim, "temperature": head_dim**-0.5, "bias": False, "dropout": dropout}
    relative = T5Buckets(
        num_buckets=config.size("relative_attention_num_buckets", 32),
        max_distance=config.integer("relative_attention_max_distance", 128),
        shared=shared,
    )
    attention, feed_forward = Attention(relative=relative, **sizes), network or _feed_forward(config, dropout)
    layers = config.layers("num_layers", 6)
    frontend = Text(vocab_size=config.size("vocab_size", 32128), positions=NoPositions(), dropout=dropout)
    block = Block(branches=(attention.changed(mask=Full()), feed_forward), norm=norm, dropout=dropout)
    stack = {"context_length": config.integer("n_positions", 512), "frontend": frontend, "norm": norm}
    width = config.size("d_model", 512)
    if config.items("architectures")[:1] in ENCODERS:
        return Model(width=width, num_layers=layers, blocks=(block,), head=head, **stack)
    return Model(
        width=width,
        num_layers=config.layers("num_decoder_layers", layers),
        blocks=(block.changed(branches=(attention, CrossAttention(**sizes), feed_forward)),),
        encoder=Encoder(num_layers=layers, blocks=(block,), share_embedding=True, **stack),
        head=head,
        **stack,
    )


def spec_of_umt5(config: Config, head: Head) -> Model:
    """Build the spec of UMT5: T5 with a bias table in each layer."""
    return spec(config, head, shared=False)


ENCODERS = tuple([f"{stem}EncoderModel"] for stem in ("T5", "LongT5", "MT5", "UMT5", "SwitchTransformers"))
"""Values of ``architectures`` in configs of models without a decoder."""


def _feed_forward(config: Config, dropout: float) -> FeedForward | GatedFeedForward:
    """Build the feed-forward spec from ``feed_forward_proj``: an activation, optionally with the prefix "gated-".

    "gated-gelu" means the tanh approximation.
    """
    value: str = config.word("feed_forward_proj", "relu")
    name = value.removeprefix("gated-")
    if name not in INWARD:
        names = [*INWARD, *(f"gated-{each}" for each in INWARD)]
        raise UserError(
            f"{config.source}: feed_forward_proj is {value!r}, which qkv does not support; {nearest(value, names)}"
        )
    name = "gelu_new" if value == "gated-gelu" else name
    config.fixed("dense_act_fn", name, "the activation in feed_forward_proj")
    config.fixed("is_gated_act", value.startswith("gated-"), "gating, which feed_forward_proj defines")
    activation: Any = INWARD[name]
    kind = GatedFeedForward if value.startswith("gated-") else FeedForward
    return kind(hidden=config.size("d_ff", 2048), activation=activation, bias=False, dropout=dropout)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not T5's. Callers read them back to verify."""
    encoder = spec.encoder or spec
    match shape_of(encoder):
        case Block(
            branches=(Attention(relative=T5Buckets() as relative) as attention, last), norm=RMSNorm() as norm
        ), Text() as frontend:
            pass
        case _:
            return None
    if not isinstance(last, FeedForward | GatedFeedForward):
        return None
    name = OUTWARD.get(last.activation, "")
    if isinstance(last, GatedFeedForward):
        name = "gated-gelu" if last.activation == "gelu_tanh" else f"gated-{name}"
    return {
        "d_model": spec.width,
        "num_layers": len(encoder.layers),
        **({"num_decoder_layers": len(spec.layers)} if spec.encoder else {}),
        "num_heads": attention.num_heads,
        "d_kv": attention.dims(spec.width)[0],
        "d_ff": last.hidden_at(spec.width),
        "feed_forward_proj": name,
        "relative_attention_num_buckets": relative.num_buckets,
        "relative_attention_max_distance": relative.max_distance,
        "n_positions": spec.context_length,
        "vocab_size": frontend.vocab_size,
        "layer_norm_epsilon": norm.eps,
        "dropout_rate": attention.dropout,
        "is_encoder_decoder": spec.encoder is not None,
    }


def scaled_head(config: Config) -> Head:
    """Build the language model head of T5.

    If it is tied, vectors are scaled by d_model^-½, unless ``scale_decoder_outputs`` is false, as in later files. Later
    files declare every head as tied; if the scale is off and the file has weights for the head, it is untied.
    """
    tied = config.flag("tie_word_embeddings", True)
    scaled = config.flag("scale_decoder_outputs", tied and "scale_decoder_outputs" not in config.nulls)
    scale = config.size("d_model", 512) ** -0.5 if scaled else 1.0
    return LanguageModelHead(tied=tied and (scaled or not config.beside(_HEAD)), scale=scale)


def scaled_keys(head: Head) -> dict[str, Any] | None:
    """Return the config keys of the head, the inverse of ``scaled_head``; None for other heads."""
    if not isinstance(head, LanguageModelHead):
        return None
    scaled = head.scale != 1.0
    return {"tie_word_embeddings": head.tied} | ({} if scaled == head.tied else {"scale_decoder_outputs": scaled})


def _plain(config: Config) -> Head:
    """Build the language model head of mT5: without a scale, and tied only if the file has no weights for it."""
    return LanguageModelHead(tied=config.flag("tie_word_embeddings", False) and not config.beside(_HEAD))


def _plain_keys(head: Head) -> dict[str, Any] | None:
    return {"tie_word_embeddings": head.tied} if isinstance(head, LanguageModelHead) else None


_HEAD = "lm_head.weight"
HEAD_NAMES = (NameRule("head.weight", _HEAD),)
IGNORED = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": "from early files; unused"}
IGNORED_CONFIG = {
    **dict.fromkeys(("tie_word_embeddings", "scale_decoder_outputs"), "part of a head that this architecture lacks"),
    **dict.fromkeys(("classifier_dropout", "initializer_factor"), "initialisation"),
    **dict.fromkeys(("output_past", "is_decoder"), "output format of a call"),
    "num_decoder_layers": "part of a decoder, which this architecture lacks",
    "decoder_start_token_id": "read as start of the output",
    "tokenizer_class": "given by the tokenizer",
}
ENCODER = body("shared.weight", same={"encoder.embed_tokens.weight": "shared.weight"})

SYNONYMS = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}

T5 = Family(
    name="T5",
    model_types=("t5",),
    architectures={
        "T5ForConditionalGeneration": Architecture(scaled_head, scaled_keys, HEAD_NAMES),
        "T5WithLMHeadModel": Architecture(scaled_head, scaled_keys, HEAD_NAMES),
        "T5Model": body("shared.weight"),
        "T5EncoderModel": ENCODER,
    },
    spec=spec,
    config=config,
    names=NAMES,
    ignored=IGNORED,
    ignored_config=IGNORED_CONFIG,
    synonyms=SYNONYMS,
)

MT5 = Family(
    name="mT5",
    base="T5",
    model_types=("mt5",),
    architectures={
        "MT5ForConditionalGeneration": Architecture(_plain, _plain_keys, HEAD_NAMES),
        "MT5Model": body("shared.weight"),
        "MT5EncoderModel": ENCODER,
    },
    spec=spec,
    config=config,
    names=NAMES,
    defaults={
        "vocab_size": 250112,
        "d_ff": 1024,
        "num_layers": 8,
        "num_heads": 6,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": True,
    },
    ignored=IGNORED,
    ignored_config=IGNORED_CONFIG,
    synonyms=SYNONYMS,
)

UMT5 = replace(
    MT5,
    name="UMT5",
    model_types=("umt5",),
    architectures={
        "UMT5ForConditionalGeneration": Architecture(scaled_head, scaled_keys, HEAD_NAMES),
        "UMT5Model": body("shared.weight"),
        "UMT5EncoderModel": ENCODER,
    },
    spec=spec_of_umt5,
)

register(T5, MT5, UMT5)
