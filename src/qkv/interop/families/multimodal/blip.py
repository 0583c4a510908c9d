"""BLIP (Li et al. 2022) that writes captions: an image tower beside BERT's decoder, in whose blocks it is read.

The tower is like ViT, with packed queries, keys and values. The decoder has no token types. The published code begins a
caption with ``bos_token_id`` of the decoder and ends it at ``sep_token_id``, whatever its generation settings say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.shape import shape_of
from qkv.interop.families.encoder_decoders.encoder_decoder import with_cross_attention
from qkv.interop.families.encoders import bert
from qkv.interop.families.images import vit
from qkv.interop.families.multimodal.vision_encoder_decoder import BERT_CROSS, after_cross
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import Broadcast
from qkv.interop.mapping.family import COMMON, Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head, LanguageModelHead
from qkv.spec.masks import Causal, Full
from qkv.spec.model import Block, Encoder, Model
from qkv.spec.parts import LayerNorm
from qkv.spec.signals.images import Patches

_IMAGES, _TEXTS = "vision_config", "text_config"
_OF_IMAGES: Mapping[str, Any] = {"image_size": 384, "patch_size": 16, "layer_norm_eps": 1e-5}
_OF_TEXTS: Mapping[str, Any] = {
    "vocab_size": 30524,
    "num_attention_heads": 8,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
"""Defaults of the published configs of the tower and of the decoder."""
_UNREAD = {
    "projection_dim": "width of a space that another architecture uses",
    "initializer_range": "initialisation of weights",
    "initializer_factor": "initialisation of weights",
    "encoder_hidden_size": "given by the tower",
    "label_smoothing": "a setting of training",
    "is_decoder": "fixed by the family",
    "tie_word_embeddings": "read by the head",
}
_WORDS = bert.BERT.architectures["BertLMHeadModel"]


def spec(config: Config, head: Head) -> Model:
    """Build the spec: the decoder of ``text_config`` reads the last vectors of the tower of ``vision_config``."""
    images, text = config.table(_IMAGES), config.table(_TEXTS)
    images.assume(_OF_IMAGES)
    text.assume(_OF_TEXTS)
    norm = LayerNorm(eps=text.number("layer_norm_eps", 1e-12))
    decoder = bert.under(bert.structure(text, head, reserved=0, types=0, norm=norm), Causal())
    blocks = tuple(with_cross_attention(block) for block in decoder.blocks)
    encoder = _tower(images)
    for table in (images, text):
        table.leave_unread({**COMMON, **_UNREAD})
    return decoder.changed(blocks=blocks, encoder=encoder)


def _tower(config: Config) -> Encoder:
    embeds = vit.frontend(config).changed(dropout=0.0)
    norm = LayerNorm(eps=config.number("layer_norm_eps"))
    attention = Attention(
        num_heads=config.size("num_attention_heads", 12),
        mask=Full(),
        dropout=config.number("attention_dropout", 0.0),
    )
    network = FeedForward(
        hidden=config.size("intermediate_size", 3072), activation=config.word("hidden_act", "gelu", INWARD)
    )
    return Encoder(
        width=config.size("hidden_size", 768),
        num_layers=config.layers("num_hidden_layers", 12),
        context_length=embeds.num_positions or 1,
        frontend=embeds,
        blocks=(Block(branches=(attention, network), norm=norm),),
        norm=norm,
    )


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    if spec.encoder is None or any(len(block.branches) != 3 for block in spec.blocks):
        return None
    alone = tuple(block.changed(branches=(block.branches[0], block.branches[2])) for block in spec.blocks)
    words, images = bert.keys(spec.changed(encoder=None, blocks=alone)), _tower_keys(spec)
    if words is None or images is None or spec.frontend.num_types or not isinstance(spec.head, LanguageModelHead):
        return None
    return {
        _TEXTS: {
            "model_type": "blip_text_model",
            **words,
            "encoder_hidden_size": spec.memory_width,
            "tie_word_embeddings": spec.head.tied,
        },
        _IMAGES: {"model_type": "blip_vision_model", **images},
    }


def _tower_keys(spec: Model) -> dict[str, Any] | None:
    """Return the config keys of the tower; None if its structure differs."""
    encoder = spec.encoder
    assert encoder is not None
    match shape_of(encoder):
        case (
            Block(branches=(Attention() as attention, FeedForward() as network), norm=LayerNorm() as norm),
            Patches(class_token=True) as embeds,
        ):
            size = vit.trained_size(embeds)
        case _:
            return None
    if size is None or size[0] != size[1]:
        return None
    return {
        "hidden_size": spec.encoder_width,
        "num_hidden_layers": len(encoder.layers),
        "num_attention_heads": attention.num_heads,
        "attention_dropout": attention.dropout,
        "intermediate_size": network.hidden_at(spec.encoder_width),
        "hidden_act": OUTWARD[network.activation],
        "layer_norm_eps": norm.eps,
        "image_size": size[0],
        "patch_size": embeds.patch,
        "num_channels": embeds.channels,
    }


def _head(config: Config) -> Head:
    text = config.table(_TEXTS)
    text.assume({"tie_word_embeddings": config.flag("tie_word_embeddings", True)})
    return _WORDS.head(text)


def _head_keys(head: Head) -> dict[str, Any] | None:
    return _WORDS.config(head)


def settings(config: Config) -> dict[str, Any]:
    """Return the generation settings of the published code: first and last token of a caption."""
    text = config.table(_TEXTS)
    return {
        "decoder_start_token_id": text.integer("bos_token_id", 30522),
        "eos_token_id": text.integer("sep_token_id", 102),
    }


_TOWER, _DECODER = "vision_model.", "text_decoder."
_LAYER, _BLOCK = f"{_TOWER}encoder.layers.{{layer}}.", "encoder.blocks.{layer}.branches."
BLIP = Family(
    name="BLIP",
    model_types=("blip",),
    architectures={
        "BlipForConditionalGeneration": Architecture(
            _head,
            _head_keys,
            tuple(row.below(_DECODER) for row in _WORDS.names),
            same={f"{_DECODER}{second}": f"{_DECODER}{first}" for second, first in _WORDS.same.items()},
        )
    },
    spec=spec,
    config=config,
    names=(
        NameRule("encoder.frontend.first", f"{_TOWER}embeddings.class_embedding", Broadcast(axes=2)),
        NameRule("encoder.frontend.map.*", f"{_TOWER}embeddings.patch_embedding.*"),
        NameRule("encoder.frontend.positions.table", f"{_TOWER}embeddings.position_embedding", Broadcast()),
        NameRule(f"{_BLOCK}0.norm.*", f"{_LAYER}layer_norm1.*"),
        NameRule(f"{_BLOCK}0.body.qkv.*", f"{_LAYER}self_attn.qkv.*"),
        NameRule(f"{_BLOCK}0.body.output.*", f"{_LAYER}self_attn.projection.*"),
        NameRule(f"{_BLOCK}1.norm.*", f"{_LAYER}layer_norm2.*"),
        NameRule(f"{_BLOCK}1.body.up.*", f"{_LAYER}mlp.fc1.*"),
        NameRule(f"{_BLOCK}1.body.down.*", f"{_LAYER}mlp.fc2.*"),
        NameRule("encoder.norm.*", f"{_TOWER}post_layernorm.*"),
        *(row.below(_DECODER) for row in (*BERT_CROSS, *after_cross(bert.BERT.names))),
    ),
    ignored={f"{_DECODER}bert.embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config={
        **_UNREAD,
        "logit_scale_init_value": "part of another architecture",
        "image_text_hidden_size": "part of another architecture",
    },
    settings=settings,
)

register(BLIP)
