"""CLIP (Radford et al. 2021), MetaCLIP 2 (Chuang et al. 2025) and SigLIP (Zhai et al. 2023): images beside texts.

In qkv the image tower is the encoder, the text tower the model's own stack, and the head ``matching`` projects both.
A text tower of CLIP is causal and its vector is that of the end token. The models that only classify images consist of
the image tower (``images/towers.py``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.shape import shape_of
from qkv.interop.families.images.towers import (
    BODY,
    CLIP_TOWER,
    INNER,
    NAMES,
    OUTER,
    PLACES,
    SIGLIP_TOWER,
    Tower,
    classifier,
)
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV
from qkv.interop.mapping.family import COMMON, Architecture, Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head, MatchingHead, VectorsHead
from qkv.spec.model import Block, Encoder, Model, Text
from qkv.spec.parts import LayerNorm

_TEXT = "text_model."
_LAYER = f"{_TEXT}encoder.layers.{{layer}}."
_OF_STACK = ("num_layers", "context_length", "frontend", "blocks")
_INNER: Reasons = {
    **COMMON,
    **INNER,
    "vocab_size": "read",
    "num_channels": "of images",
}
TEXT_NAMES = (
    NameRule("frontend.table", f"{_TEXT}embeddings.token_embedding.weight"),
    NameRule("frontend.positions.table", f"{_TEXT}embeddings.position_embedding.weight"),
    NameRule("blocks.{layer}.branches.0.norm.*", f"{_LAYER}layer_norm1.*"),
    NameRule("blocks.{layer}.branches.0.body.qkv.*", tuple(f"{_LAYER}self_attn.{part}_proj.*" for part in "qkv"), QKV),
    NameRule("blocks.{layer}.branches.0.body.output.*", f"{_LAYER}self_attn.out_proj.*"),
    NameRule("blocks.{layer}.branches.1.norm.*", f"{_LAYER}layer_norm2.*"),
    NameRule("blocks.{layer}.branches.1.body.up.*", f"{_LAYER}mlp.fc1.*"),
    NameRule("blocks.{layer}.branches.1.body.down.*", f"{_LAYER}mlp.fc2.*"),
    NameRule("norm.*", f"{_TEXT}final_layer_norm.*"),
)


def _of_pair(spec: Model) -> bool:
    return spec.encoder is not None


def _alone(spec: Model) -> bool:
    return spec.encoder is None


_PAIR_NAMES = (
    *(row._replace(where=_alone) for row in NAMES),
    *(row._replace(ours=f"encoder.{row.ours}", where=_of_pair) for row in NAMES),
    *(row._replace(where=_of_pair) for row in TEXT_NAMES),
)


def text_tower(config: Config, head: Head) -> Model:
    """Build the spec of a text tower from its config: causal blocks, pre-norm, learned positions."""
    norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-5))
    attention = Attention(
        num_heads=config.size("num_attention_heads", 8), dropout=config.number("attention_dropout", 0.0)
    )
    network = FeedForward(
        hidden=config.size("intermediate_size", 2048), activation=config.word("hidden_act", "quick_gelu", INWARD)
    )
    return Model(
        width=config.size("hidden_size", 512),
        num_layers=config.layers("num_hidden_layers", 12),
        context_length=config.size("max_position_embeddings", 77),
        frontend=Text(vocab_size=config.size("vocab_size", 49408)),
        blocks=(Block(branches=(attention, network), norm=norm),),
        norm=norm,
        head=head,
    )


def _text_keys(spec: Model) -> dict[str, Any] | None:
    """Return the config keys of a text tower; None if its structure differs."""
    match shape_of(spec):
        case (
            Block(branches=(Attention() as attention, FeedForward() as network), norm=LayerNorm() as norm),
            Text(vocab_size=int() as tokens),
        ):
            return {
                "vocab_size": tokens,
                "hidden_size": spec.width,
                "num_hidden_layers": len(spec.layers),
                "num_attention_heads": attention.num_heads,
                "attention_dropout": attention.dropout,
                "intermediate_size": network.hidden_at(spec.width),
                "hidden_act": OUTWARD[network.activation],
                "layer_norm_eps": norm.eps,
                "max_position_embeddings": spec.context_length,
            }
        case _:
            return None


class _Pair:
    """Conversion of configs of both towers; of a head that classifies images, the image tower alone is read."""

    def __init__(self, tower: Tower):
        self.tower = tower

    def spec(self, config: Config, head: Head) -> Model:
        """Build the spec of both towers, or of the image tower under another head."""
        if not head.reads_memory:
            return self.tower.of_whole(config, head)
        inner, text = config.table("vision_config"), config.table("text_config")
        images, model = self.tower.spec(inner, VectorsHead()), text_tower(text, head)
        inner.leave_unread({**COMMON, **INNER})
        text.leave_unread(_INNER)
        # The published code applies this norm to the pooled vector, the first; qkv to every position.
        norm = LayerNorm(eps=inner.number("layer_norm_eps", self.tower.eps))
        fields = {name: getattr(images, name) for name in ("width", *_OF_STACK)}
        return model.changed(encoder=Encoder(**fields, norm=norm))

    def config(self, spec: Model) -> dict[str, Any] | None:
        """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
        if spec.encoder is None:
            return self.tower.config_of_whole(spec)
        encoder, text = spec.encoder, _text_keys(spec)
        if encoder.frontend.processor is None:
            return None
        fields = {name: getattr(encoder, name) for name in _OF_STACK}
        images = self.tower.config(Model(width=spec.memory_width, **fields, head=VectorsHead()))
        return None if images is None or text is None else {"vision_config": images, "text_config": text}


def _head(config: Config) -> MatchingHead:
    return MatchingHead(features=config.size("projection_dim", 512), pooling="last", source_pooling="first")


def _head_keys(head: Head) -> dict[str, Any] | None:
    match head:
        case MatchingHead(pooling="last", source_pooling="first", bias=False, objective="softmax"):
            return {"projection_dim": head.features}
        case _:
            return None


_MATCHER = Architecture(
    _head,
    _head_keys,
    (
        NameRule("head.map.weight", "text_projection.weight"),
        NameRule("head.source_map.weight", "visual_projection.weight"),
        NameRule("head.scale", "logit_scale"),
    ),
    ignored={f"{_TEXT}embeddings.position_ids": "constant position ids 0, 1, 2, …"},
)
_CLIP = _Pair(CLIP_TOWER)
CLIP = Family(
    name="CLIP",
    model_types=("clip",),
    architectures={"CLIPModel": _MATCHER, "CLIPForImageClassification": classifier(CLIP_TOWER)},
    spec=_CLIP.spec,
    config=_CLIP.config,
    names=_PAIR_NAMES,
    prefix=BODY,
    ignored=PLACES,
    ignored_config=OUTER,
)
METACLIP = replace(
    CLIP,
    name="MetaCLIP 2",
    base="CLIP",
    model_types=("metaclip_2",),
    architectures={"MetaClip2Model": _MATCHER, "MetaClip2ForImageClassification": classifier(CLIP_TOWER)},
)
SIGLIP = Family(
    name="SigLIP",
    model_types=("siglip",),
    architectures={"SiglipForImageClassification": classifier(SIGLIP_TOWER)},
    spec=SIGLIP_TOWER.of_whole,
    config=SIGLIP_TOWER.config_of_whole,
    names=NAMES,
    prefix=BODY,
    ignored=PLACES,
    ignored_config=OUTER,
)

register(CLIP, METACLIP, SIGLIP)
