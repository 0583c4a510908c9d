"""DINOv2 with registers, DINOv3 and ViT-MSN: class token, registers, patches on uneven grids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.interop.cases.case import Case
from tests.interop.cases.vit import LABELS, SIZES, case
from transformers import (
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersForImageClassification,
    DINOv3ViTConfig,
    DINOv3ViTModel,
    ViTMSNConfig,
    ViTMSNForImageClassification,
)


def registered(**changed: Any) -> Dinov2WithRegistersConfig:
    return Dinov2WithRegistersConfig(**{**SIZES, "mlp_ratio": 2, "image_size": 12, **changed})


def dinov3(name: str, **changed: Any) -> Case:
    sizes = {**SIZES, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 30, "image_size": [12, 20]}
    config = DINOv3ViTConfig(**{**sizes, **changed})
    parts = (
        *(f"attention.{each}_proj" for each in "qkvo"),
        *(f"mlp.{each}_proj" for each in ("gate", "up", "down")),
        *("norm1", "norm2", "layer_scale1", "layer_scale2"),
    )
    renamed = {
        f"layer.{i}.{part}.{leaf}": f"model.layer.{i}.{part}.{leaf}"
        for i in range(config.num_hidden_layers)
        for part in parts
        for leaf in ("weight", "bias", "lambda1")
    }
    return Case(name, DINOv3ViTModel, config, renamed=renamed)


def msn() -> Case:
    config = ViTMSNConfig(**{**SIZES, "intermediate_size": 44, "id2label": LABELS})
    own = case("msn-classes", ViTMSNForImageClassification, config)
    # Its files lack the prefix of the body in the names of the blocks.
    renamed = {
        file.removeprefix("vit_msn."): name.replace("vit_msn.", "vit.")
        for file, name in own.renamed.items()
        if isinstance(name, str)
    }
    return replace(own, renamed=renamed)


CASES = (
    case(
        "dinov2-registers-classes",
        Dinov2WithRegistersForImageClassification,
        registered(id2label=LABELS, num_register_tokens=3),
    ),
    dinov3("dinov3-registers", num_register_tokens=2, layerscale_value=0.2),
    dinov3(
        "dinov3-gated", use_gated_mlp=True, num_register_tokens=1, key_bias=True, hidden_act="silu", proj_bias=False
    ),
    msn(),
)
