"""DeiT (Touvron et al. 2021): ViT with a distillation token after the class token."""

from __future__ import annotations

from functools import partial
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.heads import label_count, label_keys
from qkv.interop.families.images import vit
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import Broadcast
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import DistilledHead, Head
from qkv.spec.model import Model

_EXTRA = 1
"""Number of learned positions after the class token: the distillation token."""
_UNUSED = vit.unused("deit.")


def spec(config: Config, head: Head) -> Model:
    """Build the spec of DeiT: like ViT, with one more learned position."""
    return vit.body(config, head, vit.feed_forward(config), vit.frontend(config, extra_tokens=_EXTRA))


def _teacher(head: Head) -> dict[str, Any] | None:
    return label_keys(head.num_classes or 2) if isinstance(head, DistilledHead) else None


DEIT = Family(
    name="DeiT",
    model_types=("deit",),
    architectures={
        "DeiTForImageClassification": vit.classifier("classifier", ignored=_UNUSED),
        "DeiTForImageClassificationWithTeacher": Architecture(
            lambda config: DistilledHead(num_classes=label_count(config)),
            _teacher,
            (
                NameRule("head.first.*", "cls_classifier.*"),
                NameRule("head.second.*", "distillation_classifier.*"),
            ),
            _UNUSED,
        ),
        "DeiTModel": heads.vectors(kept=_UNUSED),
    },
    spec=spec,
    config=partial(vit.config, extra_tokens=_EXTRA),
    names=(
        *vit.names("deit."),
        NameRule("frontend.extra", "deit.embeddings.distillation_token", Broadcast()),
    ),
    prefix="deit.",
    ignored_config=vit.IGNORED_CONFIG,
)

register(DEIT)
