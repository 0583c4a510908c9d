"""Swin, Swin v2 and Donut's encoder: windows that leave cells over, shifted ones, odd grids, trained windows."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from tests.interop.cases.vit import LABELS
from transformers import (
    DonutSwinConfig,
    DonutSwinForImageClassification,
    SwinConfig,
    SwinForImageClassification,
    SwinModel,
    Swinv2Config,
    Swinv2ForImageClassification,
    Swinv2Model,
)

SIZES = {"embed_dim": 8, "depths": [2, 1], "num_heads": [2, 4], "image_size": 14, "patch_size": 2, "window_size": 3}
_INSIDE = {
    **{f"attention.self.{each}": f"attention.{each[0]}_proj" for each in ("query", "key", "value")},
    "attention.self.relative_position_bias_table": ("attention.relative_position_bias.relative_position_bias_table"),
    "attention.output.dense": "attention.o_proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
}


def swin(name: str, model: type[Any], **changed: Any) -> Case:
    """A case of Swin with the names that the library's modules give the tensors of its files."""
    config = SwinConfig(**{**SIZES, **changed})
    body = "" if model is SwinModel else "swin."
    renamed = {
        f"{layer}{file}{leaf}": f"{layer}{own}{leaf}"
        for stage, depth in enumerate(config.depths)
        for layer in (f"{body}encoder.layers.{stage}.blocks.{i}." for i in range(depth))
        for file, own in _INSIDE.items()
        for leaf in ("", ".weight", ".bias")
    }
    return Case(name, model, config, renamed=renamed)


CASES = (
    swin("swin-classes", SwinForImageClassification, id2label=LABELS, mlp_ratio=2.5, qkv_bias=False),
    swin("swin-body", SwinModel, depths=[2, 2, 1], num_heads=[1, 2, 4], image_size=22, use_absolute_embeddings=True),
    Case("swinv2-classes", Swinv2ForImageClassification, Swinv2Config(**SIZES, id2label=LABELS, qkv_bias=True)),
    Case("swinv2-body", Swinv2Model, Swinv2Config(**{**SIZES, "window_size": 8}, pretrained_window_sizes=[4, 0])),
    Case(
        "donut-swin-number",
        DonutSwinForImageClassification,
        DonutSwinConfig(**SIZES, num_labels=1, num_channels=1),
        computed=("relative_position_index",),
    ),
)
