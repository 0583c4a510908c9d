"""Whisper (Radford et al. 2022), of all sizes, and its distilled forms: an encoder–decoder from log-mel frames to text.

Two convolutions with GELU embed the frames, and sinusoidal positions are added, all sines before all cosines. Blocks
are pre-norm, and keys have no bias. The decoder has learned positions and a head that shares its token table. Decoders
are also published alone, and encoders with a classification head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.bart_like import decodes_alone
from qkv.interop.families.common.heads import body, language_model, written_back
from qkv.interop.families.common.sinusoids import is_sinusoid
from qkv.interop.families.sound.wav2vec2 import classes
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, QKV
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.registry import register
from qkv.spec.branches import Attention, Branch, FeedForward
from qkv.spec.heads import Head
from qkv.spec.masks import Full
from qkv.spec.model import Block, Encoder, Model, Stack, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import LayerNorm, Learned, Positions, Sinusoidal
from qkv.spec.signals.sound import MelConvolutions

_TABLE = "model.decoder.embed_tokens.weight"
_CLASSES = "WhisperForAudioClassification"
_PLACES = "model.encoder.embed_positions.weight"
_SINUSOIDS = Sinusoidal(halves=True, closed=True)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of a config: D = d_model; encoder and decoder have layers, heads and features of their own."""
    if _hears_alone(config):
        width, std = config.size("d_model", 384), config.number("init_std", 0.02)
        return Model(width=width, head=head, init_std=std, **_hearing(config))
    encoder = None if decodes_alone(config) else Encoder(**_hearing(config))
    return Model(
        width=config.size("d_model", 384),
        num_layers=config.layers("decoder_layers", 4),
        context_length=config.size("max_target_positions", 448),
        frontend=Text(
            vocab_size=config.size("vocab_size", 51865), positions=Learned(), dropout=config.number("dropout", 0.0)
        ),
        blocks=(_block(config, *_branches(config, "decoder", encoder is not None)),),
        norm=LayerNorm(),
        encoder=encoder,
        head=head,
        init_std=config.number("init_std", 0.02),
    )


def _hears_alone(config: Config) -> bool:
    """Return True if the config names the model for classification, the encoder without a decoder."""
    return next(iter(config.items("architectures")), "") == _CLASSES


def _hearing(config: Config) -> dict[str, Any]:
    """Build the fields of the encoder stack, which reads log-mel frames."""
    positions: Positions = _SINUSOIDS if is_sinusoid(config, _SINUSOIDS, _PLACES) else Learned()
    return {
        "num_layers": config.layers("encoder_layers", 4),
        "context_length": config.size("max_source_positions", 1500),
        "frontend": MelConvolutions(
            bins=config.size("num_mel_bins", 80), positions=positions, dropout=config.number("dropout", 0.0)
        ),
        "blocks": (_block(config, *_branches(config, "encoder", reads=False)),),
        "norm": LayerNorm(),
    }


def _block(config: Config, *branches: Branch) -> Block:
    return Block(branches=branches, norm=LayerNorm(), dropout=config.number("dropout", 0.0))


def _branches(config: Config, stack: str, reads: bool) -> tuple[Branch, ...]:
    """Build the branches of a block of ``stack``, "encoder" or "decoder"; reads: True if it reads an encoder."""
    attention = {
        "num_heads": config.size(f"{stack}_attention_heads", 6),
        "dropout": config.number("attention_dropout", 0.0),
        "key_bias": False,
    }
    feed_forward = FeedForward(
        hidden=config.size(f"{stack}_ffn_dim", 1536),
        activation=config.word("activation_function", "gelu", INWARD),
        dropout=config.number("activation_dropout", 0.0),
    )
    first = Attention(**attention, mask=Full()) if stack == "encoder" else Attention(**attention)
    return (first, *((CrossAttention(**attention),) if reads else ()), feed_forward)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    match spec.layers[:1]:
        case (Block(branches=(Attention() as read, *_, FeedForward() as write)) as block,):
            pass
        case _:
            return None
    shared = {
        "d_model": spec.width,
        "activation_function": OUTWARD.get(write.activation),
        "dropout": block.dropout,
        "attention_dropout": read.dropout,
        "activation_dropout": write.dropout,
        "init_std": spec.init_std,
    }
    if isinstance(spec.frontend, MelConvolutions):
        source = _frame_keys(spec, spec.width)
        return None if source is None else {**shared, **source}
    source = _source_keys(spec)
    if source is None:
        return None
    return {
        **shared,
        "vocab_size": spec.vocab_size,
        "max_target_positions": spec.context_length,
        "decoder_layers": len(spec.layers),
        "decoder_attention_heads": read.num_heads,
        "decoder_ffn_dim": write.hidden_at(spec.width),
        "pad_token_id": None,  # by default one that smaller vocabularies lack
        **source,
    }


def _source_keys(spec: Model) -> dict[str, Any] | None:
    """Return the config keys of the encoder, or those of a decoder alone; None if the encoder's structure differs."""
    if spec.encoder is None:
        return {"is_encoder_decoder": False}
    keys = _frame_keys(spec.encoder, spec.width)
    return None if keys is None else {**keys, "is_encoder_decoder": True}


def _frame_keys(stack: Stack, width: int) -> dict[str, Any] | None:
    """Return the config keys of an encoder stack of ``width``; None if its structure differs."""
    match stack.frontend, stack.layers[:1]:
        case MelConvolutions() as frames, (Block(branches=(Attention() as hear, FeedForward() as think)),):
            pass
        case _:
            return None
    return {
        "num_mel_bins": frames.bins,
        "max_source_positions": stack.context_length,
        "encoder_layers": len(stack.layers),
        "encoder_attention_heads": hear.num_heads,
        "encoder_ffn_dim": think.hidden_at(width),
    }


def _attention(ours: str, theirs: str) -> tuple[NameRule, ...]:
    """Return the names of self-attention, whose keys have no bias."""
    return (
        NameRule(f"{ours}qkv.weight", tuple(f"{theirs}{part}_proj.weight" for part in "qkv"), QKV),
        NameRule(f"{ours}query_bias", f"{theirs}q_proj.bias"),
        NameRule(f"{ours}value_bias", f"{theirs}v_proj.bias"),
        NameRule(f"{ours}output.*", f"{theirs}out_proj.*"),
    )


def _stack(ours: str, theirs: str, last: int) -> tuple[NameRule, ...]:
    """Return the names of a stack. ``last``: index of the feed-forward among the branches of a block."""
    slot, layer = f"{ours}blocks.{{layer}}.branches.", f"{theirs}layers.{{layer}}."
    return (
        NameRule(f"{ours}frontend.positions.table", f"{theirs}embed_positions.weight"),
        NameRule(f"{slot}0.norm.*", f"{layer}self_attn_layer_norm.*"),
        *_attention(f"{slot}0.body.", f"{layer}self_attn."),
        NameRule(f"{slot}{last}.norm.*", f"{layer}final_layer_norm.*"),
        NameRule(f"{slot}{last}.body.up.*", f"{layer}fc1.*"),
        NameRule(f"{slot}{last}.body.down.*", f"{layer}fc2.*"),
        NameRule(f"{ours}norm.*", f"{theirs}layer_norm.*"),
    )


def _alone(spec: Model) -> bool:
    return spec.encoder is None


def _hears(spec: Model) -> bool:
    return isinstance(spec.frontend, MelConvolutions)


_SLOT, _CROSS = "blocks.{layer}.branches.1.", "model.decoder.layers.{layer}.encoder_attn"
NAMES = (
    NameRule("frontend.table", _TABLE),
    NameRule("encoder.frontend.convolutions.{i}.*", "model.encoder.conv{i+1}.*"),
    *_stack("encoder.", "model.encoder.", 1),
    NameRule("frontend.convolutions.{i}.*", "model.encoder.conv{i+1}.*"),
    *(row._replace(where=_hears) for row in _stack("", "model.encoder.", 1)),
    *(row._replace(where=_alone) for row in _stack("", "model.decoder.", 1)),
    *_stack("", "model.decoder.", 2),
    NameRule(f"{_SLOT}norm.*", f"{_CROSS}_layer_norm.*"),
    NameRule(f"{_SLOT}body.query.*", f"{_CROSS}.q_proj.*"),
    NameRule(f"{_SLOT}body.memory.weight", (f"{_CROSS}.k_proj.weight", f"{_CROSS}.v_proj.weight"), PAIR),
    NameRule(f"{_SLOT}body.value_bias", f"{_CROSS}.v_proj.bias"),
    NameRule(f"{_SLOT}body.output.*", f"{_CROSS}.out_proj.*"),
)

_SPEC_AUGMENT = "masks of frames in training, a setting of the processor"
_IGNORED: Reasons = {
    "scale_embedding": "not read by the published code",
    "tie_word_embeddings": "part of a head that this architecture lacks",
    **dict.fromkeys(("encoder_layerdrop", "decoder_layerdrop"), "layer dropout in training, which qkv does not use"),
    **dict.fromkeys(("use_weighted_layer_sum", "classifier_proj_size"), "part of a head of classes"),
    **dict.fromkeys(
        ("apply_spec_augment", *(f"mask_{axis}_{key}" for axis in ("time", "feature") for key in ("prob", "length"))),
        _SPEC_AUGMENT,
    ),
    **dict.fromkeys(("mask_time_min_masks", "mask_feature_min_masks"), _SPEC_AUGMENT),
    **dict.fromkeys(
        ("suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids", "median_filter_width"),
        "settings of generation and of tasks",
    ),
    "decoder_start_token_id": "read as start of the output",
    **dict.fromkeys(
        (
            *(f"encoder_{key}" for key in ("layers", "attention_heads", "ffn_dim")),
            *("num_mel_bins", "max_source_positions", "is_decoder"),
        ),
        "part of an encoder, which this architecture lacks",
    ),
    **dict.fromkeys(
        (
            *(f"decoder_{key}" for key in ("layers", "attention_heads", "ffn_dim")),
            *("vocab_size", "max_target_positions"),
        ),
        "part of a decoder, which this architecture lacks",
    ),
}
_SYNONYMS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "num_key_value_heads": "encoder_attention_heads",
}

WHISPER = Family(
    name="Whisper",
    model_types=("whisper",),
    architectures={
        "WhisperForConditionalGeneration": language_model(tied=True, theirs="proj_out.weight"),
        "WhisperModel": body(_TABLE),
        _CLASSES: replace(classes(), bare=True, typical={"architectures": [_CLASSES]}),
        "WhisperForCausalLM": replace(
            language_model(tied=True, theirs="proj_out.weight"),
            kept=written_back({f"{_CROSS}*": "part of cross-attention, which the model lacks"}),
        ),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="model.",
    ignored={_PLACES: "computed from the config"},
    ignored_config=_IGNORED,
    synonyms=_SYNONYMS,
)

register(WHISPER)
