"""DeiT (Touvron et al. 2021): ViT with a distillation token after the class token."""

from __future__ import annotations

from typing import Any

from qkv.interop.families import heads, vit
from qkv.interop.families.heads import label_count, label_keys
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture, Family, NameRule
from qkv.interop.mapping.ways import Broadcast
from qkv.spec.heads import DistilledHead, Head
from qkv.spec.model import Model
from qkv.spec.signals.images import Patches


def spec(config: Config, head: Head) -> Model:
    """Spec of DeiT: that of ViT with one more learned position."""
    return vit.body(config, head, vit.feed_forward(config), vit.frontend(config, extra_tokens=1))


def config(spec: Model) -> dict[str, Any] | None:
    """Keys of config.json for ``spec``; None if its structure is not DeiT's. Callers read them back to verify."""
    return vit.config(spec) if isinstance(spec.frontend, Patches) and spec.frontend.extra_tokens else None


def _teacher(head: Head) -> dict[str, Any] | None:
    return label_keys(head.num_classes or 2) if isinstance(head, DistilledHead) else None


POOLER = heads.pooler("deit.")
MASK = {"deit.embeddings.mask_token": "token of masked patches, used in pretraining only"}

DEIT = Family(
    name="DeiT",
    model_types=("deit",),
    architectures={
        "DeiTForImageClassification": vit.classifier("classifier", ignored={**POOLER, **MASK}),
        "DeiTForImageClassificationWithTeacher": Architecture(
            lambda config: DistilledHead(num_classes=label_count(config)),
            _teacher,
            (
                NameRule("head.first.*", "cls_classifier.*"),
                NameRule("head.second.*", "distillation_classifier.*"),
            ),
            {**POOLER, **MASK},
        ),
        "DeiTModel": heads.vectors(kept={**POOLER, **MASK}),
    },
    spec=spec,
    config=config,
    names=(
        *vit.names("deit."),
        NameRule("frontend.extra", "deit.embeddings.distillation_token", Broadcast()),
    ),
    prefix="deit.",
    ignored_config=vit.IGNORED_CONFIG,
)
