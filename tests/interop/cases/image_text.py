"""Encoders of images and text, read for their text alone: ModernVBERT, UltraVBERT."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import (
    ModernVBertConfig,
    ModernVBertForMaskedLM,
    ModernVBertModel,
    UltraVBertConfig,
    UltraVBertForMaskedLM,
    UltraVBertModel,
)

SIZES = {
    "vocab_size": 61,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "intermediate_size": 44,
    "max_position_embeddings": 23,
    "pad_token_id": 0,
}
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 20,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 28,
    "image_size": 16,
    "patch_size": 4,
}


def modern(text: dict[str, Any] | None = None, **changed: Any) -> ModernVBertConfig:
    inner = {**SIZES, "model_type": "modernbert", "local_attention": 4, **(text or {})}
    return ModernVBertConfig(text_config=inner, vision_config=VISION, image_token_id=3, **changed)


def ultra(text: dict[str, Any] | None = None, **changed: Any) -> UltraVBertConfig:
    inner = {**SIZES, "model_type": "ultrabert", "head_dim": 4, "sliding_window": 2, "prediction_head_size": 14}
    vision = {**VISION, "vision_use_head": False}
    settings = {"image_token_id": 3, "pixel_shuffle_factor": 2, **changed}
    return UltraVBertConfig(text_config={**inner, **(text or {})}, vision_config=vision, **settings)


HEAD = {"head.linear1": "projection_head.linear1", "head.linear2": "projection_head.linear2", "head.decoder": "lm_head"}
OF_ULTRA: dict[str, str | tuple[str, ...]] = {f"{ours}.weight": f"{name}.weight" for ours, name in HEAD.items()}
CASES = (
    Case("modernvbert-masked", ModernVBertForMaskedLM, modern()),
    Case(
        "modernvbert-masked-tied",
        ModernVBertForMaskedLM,
        modern({"decoder_bias": False, "classifier_bias": True}, tie_word_embeddings=True),
    ),
    Case("modernvbert-body", ModernVBertModel, modern()),
    Case("ultravbert-masked", UltraVBertForMaskedLM, ultra(), renamed=OF_ULTRA),
    Case("ultravbert-body", UltraVBertModel, ultra({"num_key_value_heads": 2})),
)
