"""PoolFormer, ConvNeXt, PVT and SegFormer: one stage and several, patches that overlap, keys of blocks and of all."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from tests.interop.cases.vit import LABELS
from transformers import (
    ConvNextConfig,
    ConvNextForImageClassification,
    ConvNextV2Config,
    ConvNextV2ForImageClassification,
    FocalNetConfig,
    FocalNetForImageClassification,
    FocalNetModel,
    PoolFormerConfig,
    PoolFormerForImageClassification,
    PvtConfig,
    PvtForImageClassification,
    PvtModel,
    PvtV2Config,
    PvtV2ForImageClassification,
    SegformerConfig,
    SegformerForImageClassification,
)

TWO = {"hidden_sizes": [8, 12], "depths": [2, 1], "num_encoder_blocks": 2}
POOLED = {**TWO, "patch_sizes": [5, 3], "strides": [3, 2], "padding": [2, 1], "image_size": 20}
CONVOLVED = {"hidden_sizes": [6, 10], "depths": [1, 2], "num_stages": 2, "patch_size": 3, "image_size": 20}
FOCAL = {
    "embed_dim": 6,
    "depths": [1, 2],
    "focal_levels": [2, 1],
    "focal_windows": [3, 5],
    "patch_size": 3,
    "image_size": 18,
}
READ = {**TWO, "num_attention_heads": [2, 3], "mlp_ratios": [2, 3]}
OVERLAPPING = {**READ, "sr_ratios": [2, 1], "patch_sizes": [5, 3], "strides": [3, 2], "image_size": 20}
PYRAMID = {**READ, "sequence_reduction_ratios": [2, 1], "patch_sizes": [4, 2], "strides": [4, 2], "image_size": 16}
_INSIDE = {
    **{f"attention.self.{each}": f"attention.{each[0]}_proj" for each in ("query", "key", "value")},
    "attention.self.sr": "attention.sequence_reduction.sequence_reduction",
    "attention.self.layer_norm": "attention.sequence_reduction.layer_norm",
    "attention.output.dense": "attention.o_proj",
    "mlp.dense1": "mlp.fc1",
    "mlp.dwconv.dwconv": "mlp.dwconv.dwconv",
    "mlp.dense2": "mlp.fc2",
    "layer_norm_1": "layernorm_before",
    "layer_norm_2": "layernorm_after",
}


def segformer(name: str, **changed: Any) -> Case:
    """A case of SegFormer with the names that the library's modules give the tensors of its files."""
    config, places = SegformerConfig(**{**OVERLAPPING, **changed}), dict[str, str]()
    for stage, depth in enumerate(config.depths):
        own = f"segformer.stages.{stage}."
        for part in ("proj", "layer_norm"):
            places[f"segformer.encoder.patch_embeddings.{stage}.{part}"] = f"{own}patch_embeddings.{part}"
        places[f"segformer.encoder.layer_norm.{stage}"] = f"{own}layer_norm"
        for i in range(depth):
            for file, inside in _INSIDE.items():
                places[f"segformer.encoder.block.{stage}.{i}.{file}"] = f"{own}blocks.{i}.{inside}"
    renamed = {f"{file}.{leaf}": f"{place}.{leaf}" for file, place in places.items() for leaf in ("weight", "bias")}
    return Case(name, SegformerForImageClassification, config, renamed=renamed)


CASES = (
    Case("poolformer-classes", PoolFormerForImageClassification, PoolFormerConfig(**POOLED, id2label=LABELS)),
    Case(
        "poolformer-number",
        PoolFormerForImageClassification,
        PoolFormerConfig(**POOLED, num_labels=1, use_layer_scale=False, pool_size=5, mlp_ratio=2.5),
    ),
    Case("focalnet-classes", FocalNetForImageClassification, FocalNetConfig(**FOCAL, id2label=LABELS)),
    Case(
        "focalnet-body",
        FocalNetModel,
        FocalNetConfig(
            **{**FOCAL, "patch_size": 4, "image_size": 24},
            use_conv_embed=True,
            use_layerscale=True,
            use_post_layernorm=True,
            use_post_layernorm_in_modulation=True,
            normalize_modulator=True,
        ),
    ),
    Case("convnext-classes", ConvNextForImageClassification, ConvNextConfig(**CONVOLVED, id2label=LABELS)),
    Case(
        "convnext-number",
        ConvNextForImageClassification,
        ConvNextConfig(**CONVOLVED, num_labels=1, layer_scale_init_value=0.0, layer_norm_eps=1e-3),
    ),
    Case("convnextv2-classes", ConvNextV2ForImageClassification, ConvNextV2Config(**CONVOLVED, id2label=LABELS)),
    Case("pvt-classes", PvtForImageClassification, PvtConfig(**PYRAMID, id2label=LABELS, num_labels=3)),
    Case("pvt-body", PvtModel, PvtConfig(**PYRAMID, qkv_bias=False, layer_norm_eps=1e-3)),
    Case("pvt-v2-classes", PvtV2ForImageClassification, PvtV2Config(**OVERLAPPING, id2label=LABELS, qkv_bias=False)),
    segformer("segformer-classes", id2label=LABELS, drop_path_rate=0.2),
    segformer("segformer-number", num_labels=1, sr_ratios=[1, 2], reshape_last_stage=False),
)
