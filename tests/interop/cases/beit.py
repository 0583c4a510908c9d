"""BEiT and data2vec for images: tables of each layer or of all, absolute positions, both poolings."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from tests.interop.cases.vit import LABELS, SIZES
from transformers import (
    BeitConfig,
    BeitForImageClassification,
    BeitModel,
    Data2VecVisionConfig,
    Data2VecVisionForImageClassification,
)

COMMON = {**SIZES, "intermediate_size": 44, "image_size": 12}


def beit_case(name: str, model: type[Any], **changed: Any) -> Case:
    """A case of BEiT with the names that the library's modules give the tensors of its files."""
    config, body = BeitConfig(**{**COMMON, **changed}), "" if model is BeitModel else "beit."
    inside = {
        **{f"attention.attention.{each}": f"attention.{each[0]}_proj" for each in ("query", "key", "value")},
        "attention.attention.relative_position_bias": "relative_position_bias",
        "attention.output.dense": "attention.o_proj",
        "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
        **{each: each for each in ("layernorm_before", "layernorm_after", "lambda_1", "lambda_2")},
    }
    renamed = {
        f"{body}encoder.layer.{i}.{file}{leaf}": f"{body}layers.{i}.{own}{leaf}"
        for i in range(config.num_hidden_layers)
        for file, own in inside.items()
        for leaf in ("", ".weight", ".bias", ".relative_position_bias_table")
    }
    table = "relative_position_bias_table"
    shared = {f"{body}encoder.relative_position_bias.{table}": f"{body}shared_position_bias.{table}"}
    return Case(name, model, config, renamed={**renamed, **shared})


def data2vec(**changed: Any) -> Data2VecVisionConfig:
    return Data2VecVisionConfig(**{**COMMON, **changed})


CASES = (
    beit_case(
        "beit-classes", BeitForImageClassification, id2label=LABELS, use_relative_position_bias=True, drop_path_rate=0.2
    ),
    beit_case("beit-first", BeitForImageClassification, use_mean_pooling=False, use_shared_relative_position_bias=True),
    beit_case("beit-body", BeitModel, use_absolute_position_embeddings=True, layer_scale_init_value=0.0),
    Case(
        "data2vec-vision-classes",
        Data2VecVisionForImageClassification,
        data2vec(num_labels=1, use_shared_relative_position_bias=True, num_channels=1),
    ),
)
