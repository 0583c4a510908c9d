"""ViT, DeiT and DINOv2: grey and coloured images, uneven sides, patches that leave pixels over, each head."""

from __future__ import annotations

import re
from typing import Any

from tests.interop.cases.case import Case
from transformers import (
    DeiTConfig,
    DeiTForImageClassification,
    DeiTForImageClassificationWithTeacher,
    DeiTModel,
    Dinov2Config,
    Dinov2ForImageClassification,
    Dinov2Model,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

SIZES = {"hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 5, "image_size": 14, "patch_size": 4}
LABELS = {0: "cat", 1: "dog", 2: "neither"}


def vit(**changed: Any) -> ViTConfig:
    return ViTConfig(**{**SIZES, "intermediate_size": 44, **changed})


def deit(**changed: Any) -> DeiTConfig:
    return DeiTConfig(**{**SIZES, "intermediate_size": 44, **changed})


def dinov2(**changed: Any) -> Dinov2Config:
    return Dinov2Config(**{**SIZES, "mlp_ratio": 2, **changed})


_LAYER = {
    "encoder.layer.": "layers.",
    "attention.attention.query": "attention.q_proj",
    "attention.attention.key": "attention.k_proj",
    "attention.attention.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
}


def case(name: str, model: type[Any], config: Any) -> Case:
    """A case with the names that the library's modules give the tensors of its files."""
    files = [
        f"encoder.layer.{i}.{part}.{leaf}"
        for i in range(config.num_hidden_layers)
        for part in (
            *(f"attention.attention.{each}" for each in ("query", "key", "value")),
            *("attention.output.dense", "intermediate.dense", "output.dense", "layernorm_before", "layernorm_after"),
            *("norm1", "norm2", "layer_scale1", "layer_scale2", "mlp.fc1", "mlp.fc2"),
        )
        for leaf in ("weight", "bias", "lambda1")
    ]
    body = "" if model.__name__.endswith("Model") else f"{config.model_type}."
    changes = {k: v for k, v in _LAYER.items() if "attention" in k or not config.model_type.startswith("dinov2")}
    pattern = re.compile("|".join(map(re.escape, changes)))
    renamed = {f"{body}{file}": body + pattern.sub(lambda found: changes[found[0]], file) for file in files}
    gated = {
        f"{body}encoder.layer.{i}.mlp.{file}.{leaf}": tuple(
            f"{body}encoder.layer.{i}.mlp.{each}.{leaf}" for each in own
        )
        for i in range(config.num_hidden_layers)
        for file, own in {"weights_in": ("gate_proj", "up_proj"), "weights_out": ("down_proj",)}.items()
        for leaf in ("weight", "bias")
    }
    return Case(name, model, config, renamed={**renamed, **gated})


CASES = (
    case("vit-classes", ViTForImageClassification, vit(id2label=LABELS, qkv_bias=False)),
    case("vit-number", ViTForImageClassification, vit(num_labels=1, image_size=[12, 8], num_channels=1)),
    case("vit-body-and-pooler", ViTModel, vit(hidden_act="relu", layer_norm_eps=1e-2, hidden_dropout_prob=0.2)),
    case("deit-classes", DeiTForImageClassification, deit(id2label=LABELS)),
    case("deit-teacher", DeiTForImageClassificationWithTeacher, deit(id2label=LABELS, qkv_bias=False)),
    case("deit-body-and-pooler", DeiTModel, deit(num_hidden_layers=1)),
    case("dinov2-classes", Dinov2ForImageClassification, dinov2(id2label=LABELS, image_size=12, hidden_act="relu")),
    case("dinov2-body", Dinov2Model, dinov2(image_size=12, layerscale_value=0.3, drop_path_rate=0.1)),
    case("dinov2-gated", Dinov2Model, dinov2(image_size=12, use_swiglu_ffn=True, mlp_ratio=4, qkv_bias=False)),
)
