"""CLIP (Radford et al. 2021), MetaCLIP 2 (Chuang et al. 2025) and SigLIP (Zhai et al. 2023): images beside texts.

In qkv the image tower is the encoder, the text tower the model's own stack, and the head ``matching`` projects both. A
text tower of CLIP is causal, and its vector is that of the end token. SigLIP fills texts to one length, all positions
see each other, and the vector is that of the last one; a latent vector pools its images. The models that only classify
images consist of the image tower (``images/towers.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    ImageTower,
    classifier,
    layer_names,
)
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import Broadcast
from qkv.interop.mapping.divisions import RowDivision
from qkv.interop.mapping.family import COMMON, Architecture, Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head, MatchingHead, VectorsHead
from qkv.spec.masks import Causal, Full, Mask
from qkv.spec.model import Block, Encoder, Latents, Model, Text
from qkv.spec.models.cross import CrossAttention
from qkv.spec.parts import LayerNorm, NoNorm, NoResidual

_TEXT, _HEAD = "text_model.", f"{BODY}head."
_OF_STACK = ("num_layers", "context_length", "frontend", "blocks")
TEXT_NAMES = (
    NameRule("frontend.table", f"{_TEXT}embeddings.token_embedding.weight"),
    NameRule("frontend.positions.table", f"{_TEXT}embeddings.position_embedding.weight"),
    *layer_names(_TEXT),
    NameRule("norm.*", f"{_TEXT}final_layer_norm.*"),
)
_ATTENDS, _THINKS = "encoder.latents.blocks.0.branches.0.body.", "encoder.latents.blocks.1.branches.0."
POOLING_NAMES = (
    NameRule("encoder.latents.vectors.table", f"{_HEAD}probe", Broadcast()),
    *(
        NameRule(f"{_ATTENDS}{part}.{leaf}", f"{_HEAD}attention.in_proj_{leaf}[{part}]")
        for part in ("query", "memory")
        for leaf in ("weight", "bias")
    ),
    NameRule(f"{_ATTENDS}output.*", f"{_HEAD}attention.out_proj.*"),
    NameRule(f"{_THINKS}norm.*", f"{_HEAD}layernorm.*"),
    NameRule(f"{_THINKS}body.up.*", f"{_HEAD}mlp.fc1.*"),
    NameRule(f"{_THINKS}body.down.*", f"{_HEAD}mlp.fc2.*"),
)


def _of_pair(spec: Model) -> bool:
    return spec.encoder is not None


def _alone(spec: Model) -> bool:
    return spec.encoder is None


_PAIR_NAMES = (
    *(row._replace(where=_alone) for row in NAMES),
    *(row._replace(ours=f"encoder.{row.ours}", where=_of_pair) for row in NAMES),
    *(row._replace(where=_of_pair) for row in (*TEXT_NAMES, *POOLING_NAMES)),
)


@dataclass(frozen=True)
class TextTower:
    """Kind of text tower. tokens, width, heads, hidden, length, activation, eps: defaults of config keys.

    mask: which positions see each other.   fill: default of the id that fills texts to one length, None for CLIP.
    """

    tokens: int
    width: int
    heads: int
    hidden: int
    length: int
    activation: str
    eps: float
    mask: Mask
    fill: int | None = None

    def spec(self, config: Config, head: Head) -> Model:
        """Build the spec of a text tower from its config: pre-norm blocks, learned positions."""
        norm = LayerNorm(eps=config.number("layer_norm_eps", self.eps))
        attention = Attention(
            num_heads=config.size("num_attention_heads", self.heads),
            dropout=config.number("attention_dropout", 0.0),
            mask=self.mask,
        )
        network = FeedForward(
            hidden=config.size("intermediate_size", self.hidden),
            activation=config.word("hidden_act", self.activation, INWARD),
        )
        fill = None if self.fill is None else config.integer("pad_token_id", self.fill)
        return Model(
            width=config.size("hidden_size", self.width),
            num_layers=config.layers("num_hidden_layers", 12),
            context_length=config.size("max_position_embeddings", self.length),
            frontend=Text(vocab_size=config.size("vocab_size", self.tokens), fill=fill),
            blocks=(Block(branches=(attention, network), norm=norm),),
            norm=norm,
            head=head,
        )

    def config(self, spec: Model) -> dict[str, Any] | None:
        """Return the config keys of a text tower; None if its structure differs."""
        match shape_of(spec):
            case (
                Block(branches=(Attention() as attention, FeedForward() as network), norm=LayerNorm() as norm),
                Text(vocab_size=int() as tokens) as text,
            ):
                pass
            case _:
                return None
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
            **({} if text.fill is None else {"pad_token_id": text.fill}),
        }


@dataclass(frozen=True)
class Towers:
    """Conversion of configs of both towers; of a head that classifies images, the image tower alone is read.

    pools: True if a latent vector pools the image, as in SigLIP.
    """

    images: ImageTower
    text: TextTower
    pools: bool

    def spec(self, config: Config, head: Head) -> Model:
        """Build the spec of both towers, or of the image tower under another head."""
        if not head.reads_memory:
            return self.images.of_whole(config, head)
        inner, text = config.table("vision_config"), config.table("text_config")
        if self.pools:
            inner.fixed("vision_use_head", True, "the vector of an image")
        images, model = self.images.spec(inner, VectorsHead()), self.text.spec(text, VectorsHead())
        inner.leave_unread({**COMMON, **INNER})
        text.leave_unread({**COMMON, **INNER})
        fields = {name: getattr(images, name) for name in ("width", *_OF_STACK)}
        # CLIP's code applies this norm to the pooled vector, the first; here it is that of every position.
        norm = LayerNorm(eps=inner.number("layer_norm_eps", self.images.eps))
        latents = _pooling(images.blocks[0], norm) if self.pools else None
        return model.changed(encoder=Encoder(**fields, norm=norm, latents=latents), head=head)

    def config(self, spec: Model) -> dict[str, Any] | None:
        """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
        if spec.encoder is None:
            return self.images.config_of_whole(spec)
        encoder, text = spec.encoder, self.text.config(spec)
        if encoder.frontend.processor is None:
            return None
        fields = {name: getattr(encoder, name) for name in _OF_STACK}
        images = self.images.config(Model(width=spec.encoder_width, **fields, head=VectorsHead()))
        return None if images is None or text is None else {"vision_config": images, "text_config": text}


def _pooling(block: Block, norm: LayerNorm) -> Latents:
    """Return the pooling of SigLIP: one latent attends to the positions without residual, then a feed-forward."""
    attention, network = block.branches
    assert isinstance(attention, Attention)
    return Latents(
        count=1,
        blocks=(
            Block(branches=(CrossAttention(num_heads=attention.num_heads),), norm=NoNorm(), residual=NoResidual()),
            Block(branches=(network,), norm=norm),
        ),
        norm=NoNorm(),
    )


def _divisions(spec: Model) -> Sequence[RowDivision]:
    """Return the division of the packed projections of SigLIP's pooling: queries, then keys and values."""
    if spec.encoder is None or spec.encoder.latents is None:
        return ()
    width = spec.encoder_width
    sizes = {"query": width, "memory": 2 * width}
    return tuple(RowDivision(f"{_HEAD}attention.in_proj_{leaf}", sizes) for leaf in ("weight", "bias"))


def clip_head(config: Config) -> MatchingHead:
    """Build the head of CLIP: the vectors of the end token and of the class token, mapped to one space."""
    return MatchingHead(features=config.size("projection_dim", 512), pooling="last", source_pooling="first")


def _clip_keys(head: Head) -> dict[str, Any] | None:
    match head:
        case MatchingHead(pooling="last", source_pooling="first", bias=False, objective="softmax", source_map=True):
            return {"projection_dim": head.features}
        case _:
            return None


def _siglip_head(config: Config) -> MatchingHead:
    text = config.table("text_config")
    return MatchingHead(
        features=text.size("projection_size", text.size("hidden_size", 768)),
        pooling="last",
        source_pooling="first",
        bias=True,
        source_map=False,
        objective="sigmoid",
    )


def _siglip_keys(head: Head) -> dict[str, Any] | None:
    match head:
        case MatchingHead(pooling="last", source_pooling="first", bias=True, objective="sigmoid", source_map=False):
            return {}
        case _:
            return None


_POSITION_IDS: Reasons = {f"{_TEXT}embeddings.position_ids": "constant position ids 0, 1, 2, …"}
_CLIP_MATCHER = Architecture(
    clip_head,
    _clip_keys,
    (
        NameRule("head.map.weight", "text_projection.weight"),
        NameRule("head.source_map.weight", "visual_projection.weight"),
        NameRule("head.scale", "logit_scale"),
    ),
    ignored=_POSITION_IDS,
)
_SIGLIP_MATCHER = Architecture(
    _siglip_head,
    _siglip_keys,
    (
        NameRule("head.map.*", f"{_TEXT}head.*"),
        NameRule("head.scale", "logit_scale", Broadcast()),
        NameRule("head.offset", "logit_bias", Broadcast()),
    ),
    ignored=_POSITION_IDS,
)
_OF_CLIP = TextTower(49408, 512, 8, 2048, 77, "quick_gelu", 1e-5, Causal())
_OF_SIGLIP = TextTower(32000, 768, 12, 3072, 64, "gelu_pytorch_tanh", 1e-6, Full(), 1)
_OUTER: Reasons = {**OUTER, "logit_bias_init_value": "initialisation of the offset of similarities"}


def _family(name: str, model_type: str, towers: Towers, matcher: tuple[str, Architecture], classes: str) -> Family:
    return Family(
        name=name,
        model_types=(model_type,),
        architectures={matcher[0]: matcher[1], classes: classifier(towers.images)},
        spec=towers.spec,
        config=towers.config,
        names=_PAIR_NAMES,
        prefix=BODY,
        ignored=PLACES,
        ignored_config=_OUTER,
        divisions=_divisions,
    )


CLIP_TOWERS = Towers(CLIP_TOWER, _OF_CLIP, False)
CLIP = _family("CLIP", "clip", CLIP_TOWERS, ("CLIPModel", _CLIP_MATCHER), "CLIPForImageClassification")
METACLIP = replace(
    CLIP,
    name="MetaCLIP 2",
    base="CLIP",
    model_types=("metaclip_2",),
    architectures={"MetaClip2Model": _CLIP_MATCHER, "MetaClip2ForImageClassification": classifier(CLIP_TOWER)},
)
SIGLIP = _family(
    "SigLIP",
    "siglip",
    Towers(SIGLIP_TOWER, _OF_SIGLIP, True),
    ("SiglipModel", _SIGLIP_MATCHER),
    "SiglipForImageClassification",
)

register(CLIP, METACLIP, SIGLIP)
