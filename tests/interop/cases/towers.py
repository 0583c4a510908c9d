"""Image towers with a classifier: CLIP's class token, SigLIP's mean of patches; and I-JEPA, a ViT without one."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from tests.interop.cases.vit import case
from transformers import (
    CLIPConfig,
    CLIPForImageClassification,
    IJepaConfig,
    IJepaForImageClassification,
    IJepaModel,
    MetaClip2Config,
    MetaClip2ForImageClassification,
    SiglipConfig,
    SiglipForImageClassification,
)

SIZES = {
    "hidden_size": 30,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "image_size": 14,
    "patch_size": 4,
}
WORDS = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}
TEXT = {**WORDS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def of_both(kind: type[Any], labels: int = 3, **changed: Any) -> Any:
    """The config of both towers, with a small one of texts."""
    return kind(text_config=TEXT, vision_config={**SIZES, **changed}, num_labels=labels)


def ijepa(**changed: Any) -> IJepaConfig:
    return IJepaConfig(**{**SIZES, **changed})


CASES = (
    Case("clip-classes", CLIPForImageClassification, of_both(CLIPConfig)),
    Case("clip-number", CLIPForImageClassification, of_both(CLIPConfig, 1, hidden_act="gelu", num_channels=1)),
    Case("metaclip-classes", MetaClip2ForImageClassification, of_both(MetaClip2Config, layer_norm_eps=1e-3)),
    Case("siglip-classes", SiglipForImageClassification, of_both(SiglipConfig)),
    case("ijepa-classes", IJepaForImageClassification, ijepa(num_labels=3)),
    case("ijepa-body", IJepaModel, ijepa(image_size=12, num_channels=1, hidden_act="relu")),
)
