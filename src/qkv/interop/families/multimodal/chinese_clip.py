"""Chinese CLIP (Yang et al. 2022): the image tower of CLIP beside BERT, whose first vector is mapped."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.encoders import bert
from qkv.interop.families.images.towers import CLIP_TOWER, INNER, NAMES, OUTER, PLACES
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import COMMON, Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head, MatchingHead, VectorsHead
from qkv.spec.model import Encoder, Model
from qkv.spec.parts import LayerNorm

_IMAGES, _TEXTS, _BODY = "vision_config", "text_config", "text_model."
_OF_STACK = ("num_layers", "context_length", "frontend", "blocks")
_UNREAD = {**INNER, **bert.IGNORED_CONFIG}


def spec(config: Config, head: Head) -> Model:
    """Build the spec: BERT's stack, and the tower of images as the encoder."""
    images, text = config.table(_IMAGES), config.table(_TEXTS)
    tower, model = CLIP_TOWER.spec(images, VectorsHead()), bert.spec(text, VectorsHead())
    fields = {name: getattr(tower, name) for name in ("width", *_OF_STACK)}
    # The published code applies this norm to the pooled vector, the first; here it is that of every position.
    encoder = Encoder(**fields, norm=LayerNorm(eps=images.number("layer_norm_eps", CLIP_TOWER.eps)))
    images.leave_unread({**COMMON, **INNER})
    text.leave_unread({**COMMON, **_UNREAD})
    return model.changed(encoder=encoder, head=head)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    encoder = spec.encoder
    if encoder is None or encoder.frontend.processor is None or spec.reads_memory:
        return None
    fields = {name: getattr(encoder, name) for name in _OF_STACK}
    images = CLIP_TOWER.config(Model(width=spec.encoder_width, **fields, head=VectorsHead()))
    words = bert.config(spec.changed(encoder=None, head=VectorsHead()))
    return None if images is None or words is None else {_IMAGES: images, _TEXTS: words}


def _head(config: Config) -> Head:
    return MatchingHead(features=config.size("projection_dim", 512), pooling="first", source_pooling="first")


def _keys(head: Head) -> dict[str, Any] | None:
    match head:
        case MatchingHead(pooling="first", source_pooling="first", bias=False, objective="softmax", source_map=True):
            return {"projection_dim": head.features}
        case _:
            return None


CHINESE_CLIP = Family(
    name="Chinese CLIP",
    model_types=("chinese_clip",),
    architectures={
        "ChineseCLIPModel": Architecture(
            _head,
            _keys,
            (
                NameRule("head.map.weight", "text_projection.weight"),
                NameRule("head.source_map.weight", "visual_projection.weight"),
                NameRule("head.scale", "logit_scale"),
            ),
            ignored={f"{_BODY}pooler.*": "the pooler, which is not read"},
        )
    },
    spec=spec,
    config=config,
    names=(*(row._replace(ours=f"encoder.{row.ours}") for row in NAMES), *bert.names(_BODY)),
    ignored={**PLACES, f"{_BODY}embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config=OUTER,
)

register(CHINESE_CLIP)
