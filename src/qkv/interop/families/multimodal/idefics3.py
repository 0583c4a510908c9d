"""Idefics 3 (Laurençon et al. 2024) and SmolVLM (Marafioti et al. 2025): Llama reads images in tiles.

The tower is that of SigLIP, with its last norm. Neighbouring patches are joined to one vector, which one layer without
bias maps to the decoder's width. Positions of patches are those of fractions of the sides; at the size of the config
they are the patches' own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import language_model
from qkv.interop.families.decoders.llama import LLAMA
from qkv.interop.families.images.towers import INNER, SIGLIP_TOWER
from qkv.interop.families.multimodal.llava import INPUT, alone, joined, stack_of, text_keys, text_model, tower_rows
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import COMMON, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head, VectorsHead
from qkv.spec.model import Encoder, Model, Text
from qkv.spec.model import Tower as TowerSpec
from qkv.system.errors import UserError

_IMAGES, _TEXT = "model.vision_model.", "model.text_model."
_TEXTS = {"llama": LLAMA}
_VISION = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
}
"""Defaults of the published config of the tower."""


def spec(config: Config, head: Head) -> Model:
    """Build the spec: the last vectors of the tower, joined and mapped, before Llama."""
    model, vision = text_model(config, head, _TEXTS), config.table("vision_config")
    vision.assume(_VISION)
    images = SIGLIP_TOWER.spec(vision, VectorsHead())
    vision.leave_unread({**COMMON, **INNER, "model_type": "fixed by the family"})
    _check_positions(vision, images)
    stack = stack_of(images, images.norm)
    side = config.integer("scale_factor", 2)
    assert isinstance(model.frontend, Text)
    return model.changed(frontend=joined(model.frontend, TowerSpec(stack=stack, merge=side, bias=False)))


def _check_positions(config: Config, images: Model) -> None:
    """Refuse numbers of patches of a side whose fractions the published code rounds to the place of another patch."""
    count = config.size("image_size", 224) // config.size("patch_size", 32)
    with torch.device("cpu"):  # a model may be built without memory
        edges = torch.arange(1 / count, 1.0, 1 / count)
        places = torch.bucketize(torch.arange(count) * (1.0 / torch.tensor(count)), edges, right=True)
    if places.tolist() != list(range(count)):
        raise UserError(
            f"{config.source}: with {count} patches on a side, rounding of fractions gives two patches one position in "
            "the published code; qkv would need positions by such fractions"
        )


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    parts = alone(spec)
    if parts is None or parts[1] != TowerSpec(stack=parts[1].stack, merge=parts[1].merge, bias=False):
        return None
    text, tower = parts
    vision, words = SIGLIP_TOWER.config(images_of(tower.stack)), text_keys(text, _TEXTS)
    if vision is None or words is None:
        return None
    return {
        "text_config": words,
        "vision_config": {"model_type": "idefics3_vision", **vision},
        "scale_factor": tower.merge,
    }


def images_of(stack: Encoder) -> Model:
    """Return the stack of a tower as a model of its own."""
    fields = {name: getattr(stack, name) for name in ("num_layers", "context_length", "frontend", "blocks", "norm")}
    return Model(width=stack.width or 1, **fields, head=VectorsHead())


IDEFICS3 = Family(
    name="Idefics 3",
    model_types=("idefics3",),
    architectures={
        "Idefics3ForConditionalGeneration": replace(language_model(tied=False), kept_config=("image_token_id",))
    },
    spec=spec,
    config=config,
    names=(
        *(row.without("model.").below(_TEXT) for row in gated.NAMES),
        *tower_rows(_IMAGES),
        NameRule(f"frontend.inputs.{INPUT}.map.*", "model.connector.modality_projection.proj.*"),
    ),
    ignored_config={
        "image_token_id": "id of the placeholder in texts, which qkv replaces",
        "image_seq_len": "given by the tower",
        "vocab_size": "given by the decoder",
    },
    defaults={"text_config": {"model_type": "llama", "rms_norm_eps": 1e-5}},
    typical={"vision_config": {"image_size": 512, "patch_size": 16}},
)
SMOLVLM = replace(
    IDEFICS3,
    name="SmolVLM",
    base="Idefics 3",
    model_types=("smolvlm",),
    architectures={"SmolVLMForConditionalGeneration": next(iter(IDEFICS3.architectures.values()))},
)

register(IDEFICS3, SMOLVLM)
