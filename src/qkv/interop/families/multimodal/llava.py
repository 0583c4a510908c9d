"""LLaVA (Liu et al. 2023): a decoder whose row holds images, the vectors of a tower mapped by two layers.

The tower is that of CLIP or of SigLIP (``clip.py``), without the layers behind the one that the config names. The
decoder is Llama, Mistral or Qwen2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import language_model, written_back
from qkv.interop.families.decoders.llama import LLAMA
from qkv.interop.families.decoders.mistral import MISTRAL
from qkv.interop.families.decoders.qwen2 import QWEN2
from qkv.interop.families.images.towers import BODY, CLIP_TOWER, INNER, NAMES, SIGLIP_TOWER, ImageTower
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import COMMON, Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.mapping.normal import normal
from qkv.interop.registry import register
from qkv.spec.heads import Head, VectorsHead
from qkv.spec.model import Encoder, Model, Text
from qkv.spec.model import Tower as TowerSpec
from qkv.spec.parts import NoNorm, Norm
from qkv.spec.signals.joined import Joined
from qkv.system.errors import UserError

INPUT = "image"
_TOWER, _INPUT = "vision_tower.", f"frontend.inputs.{INPUT}."
_TOWERS = {"clip_vision_model": CLIP_TOWER, "siglip_vision_model": SIGLIP_TOWER}
_TEXTS = {"llama": LLAMA, "mistral": MISTRAL, "qwen2": QWEN2}
IMAGE_TOKEN = ("image_token_index", "image_token_id")
_OF_STACK = ("num_layers", "context_length", "frontend", "blocks")
_VISION = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
"""Image tower of a config that names none."""
KEPT: Reasons = {
    f"{_TOWER}encoder.layers.*": "layers behind the one that is read",
    f"{_TOWER}post_layernorm.*": "norm behind the layer that is read",
    f"{_TOWER}head.*": "the pooling head, which is not read",
}


def tower_rows(prefix: str) -> tuple[NameRule, ...]:
    """Return the name table of an image tower in a row; ``prefix``: prefix of the names in files."""
    rows = (row.without(BODY)._replace(ours=f"{_INPUT}tower.{row.ours}") for row in NAMES)
    return tuple(row.below(prefix) for row in rows)


def image_tower(config: Config, dropped: int, norm: bool) -> tuple[ImageTower, Encoder]:
    """Build the stack of an image tower from its config, without its last ``dropped`` layers; return its kind too.

    ``norm``: whether its last norm is read.
    """
    kind = config.word("model_type", "clip_vision_model", _TOWERS)
    images = kind.spec(config, VectorsHead())
    layers = images.depth - dropped
    if layers < 1:
        raise UserError(f"{config.source}: {images.depth} layers, of which the vectors of layer {layers} are read")
    config.leave_unread({**COMMON, **INNER})
    return kind, stack_of(images, images.blocks[0].norm if norm else NoNorm()).changed(num_layers=layers)


def stack_of(images: Model, norm: Norm) -> Encoder:
    """Return a model of images as the stack of a tower with the last norm ``norm``."""
    return Encoder(**{name: getattr(images, name) for name in ("width", *_OF_STACK)}, norm=norm)


def tower_keys(stack: Encoder, dropped: int) -> dict[str, Any] | None:
    """Return the config keys of an image tower; None if it is none of those that are published so."""
    fields = {name: getattr(stack, name) for name in _OF_STACK}
    images = Model(width=stack.width or 1, **fields, head=VectorsHead())
    name = "clip_vision_model" if stack.frontend.leading else "siglip_vision_model"
    keys = _TOWERS[name].config(images)
    return keys and {"model_type": name, **keys, "num_hidden_layers": images.depth + dropped}


def text_model(config: Config, head: Head, allowed: dict[str, Family]) -> Model:
    """Build the spec of the decoder from ``text_config``."""
    text = config.table("text_config")
    family = text.word("model_type", next(iter(allowed)), allowed)
    text.rename(family.synonyms)
    text.assume(family.defaults)
    model = family.spec(text, head)
    text.leave_unread({**COMMON, **family.ignored_config})
    return model


def text_keys(text: Model, allowed: Mapping[str, Family]) -> dict[str, Any] | None:
    """Return the config keys of a decoder in the first family whose config reads back as it; None if none does."""
    for name, family in allowed.items():
        keys = family.config(text)
        if keys is not None and _gives(family, keys, text):
            return {"model_type": name, **keys}
    return None


def _gives(family: Family, keys: dict[str, Any], text: Model) -> bool:
    read = Config(keys)
    read.assume(family.defaults)
    try:
        return normal(family.spec(read, text.head)) == normal(text)
    except UserError:
        return False


def joined(text: Text, tower: TowerSpec) -> Joined:
    """Return the front end of a decoder's texts with images in the row."""
    fields = {name: getattr(text, name) for name in Text.model_fields if name != "kind"}
    return Joined(**fields, inputs={INPUT: tower})


def alone(spec: Model) -> tuple[Model, TowerSpec] | None:
    """Return (the decoder without images, their tower); None for a model without a tower of images."""
    match spec.frontend:
        case Joined(inputs={"image": TowerSpec() as tower}) as frontend if len(frontend.inputs) == 1:
            fields = {name: getattr(frontend, name) for name in Text.model_fields if name != "kind"}
            return spec.changed(frontend=Text(**fields)), tower
        case _:
            return None


def spec(config: Config, head: Head) -> Model:
    """Build the spec: ``vision_feature_layer`` is the layer that is read, counted from the end if it is negative."""
    model, vision = text_model(config, head, _TEXTS), config.table("vision_config")
    layer, count = config.integer("vision_feature_layer", -2), vision.layers("num_hidden_layers", 12)
    dropped = -1 - layer if layer < 0 else count - layer
    kind, stack = image_tower(vision, dropped, norm=False)
    strategy = config.word("vision_feature_select_strategy", "default", {"default": 1, "full": 0})
    if strategy and not kind.class_token:
        raise UserError(f"{config.source}: vision_feature_select_strategy leaves out the first patch; use 'full'")
    tower = TowerSpec(
        stack=stack,
        skip=strategy,
        hidden=model.width,
        activation=config.word("projector_hidden_act", "gelu", INWARD),
        bias=config.flag("multimodal_projector_bias", True),
    )
    assert isinstance(model.frontend, Text)
    return model.changed(frontend=joined(model.frontend, tower))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    parts = alone(spec)
    if parts is None or parts[1].hidden != spec.width or parts[1].stack.latents is not None:
        return None
    text, tower = parts
    vision = tower_keys(tower.stack, 1)
    words = text_keys(text, _TEXTS)
    if vision is None or words is None:
        return None
    return {
        "text_config": words,
        "vision_config": vision,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default" if tower.skip else "full",
        "projector_hidden_act": OUTWARD[tower.activation],
        "multimodal_projector_bias": tower.bias,
    }


def row_of_text(row: NameRule) -> NameRule:
    """Return a row of a decoder's name table for files that also hold an image tower."""
    return row.without("model.").below("language_model.model.")


LLAVA = Family(
    name="LLaVA",
    model_types=("llava",),
    architectures={
        "LlavaForConditionalGeneration": replace(
            language_model(tied=False, theirs="language_model.lm_head.weight"),
            kept=written_back(KEPT),
            kept_config=IMAGE_TOKEN,
        )
    },
    spec=spec,
    config=config,
    names=(
        *(row_of_text(row) for row in gated.NAMES),
        *tower_rows(_TOWER),
        NameRule(f"{_INPUT}hidden.*", "multi_modal_projector.linear_1.*"),
        NameRule(f"{_INPUT}map.*", "multi_modal_projector.linear_2.*"),
    ),
    ignored_config={
        **dict.fromkeys(IMAGE_TOKEN, "id of the placeholder in texts, which qkv replaces"),
        "image_seq_length": "given by the tower",
    },
    defaults={"text_config": {"model_type": "llama"}, "vision_config": _VISION},
    older={"vision_tower.vision_model.": _TOWER},
)

register(LLAVA)
