"""I-JEPA (Assran et al. 2023): ViT without a class token; its output is the mean of the patches."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.images import vit
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model
from qkv.spec.signals.images import Patches

_UNUSED = vit.unused("ijepa.")


def spec(config: Config, head: Head) -> Model:
    """Build the spec of I-JEPA: like ViT, without the class token."""
    return vit.body(config, head, vit.feed_forward(config), vit.frontend(config).changed(class_token=False))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not I-JEPA's. Callers read them back to verify."""
    embeds = spec.frontend
    return vit.config(spec) if isinstance(embeds, Patches) and not embeds.class_token else None


IJEPA = Family(
    name="I-JEPA",
    model_types=("ijepa",),
    architectures={
        "IJepaForImageClassification": vit.classifier("classifier", "mean", ignored=_UNUSED),
        "IJepaModel": heads.vectors(kept=_UNUSED),
    },
    spec=spec,
    config=config,
    names=vit.names("ijepa."),
    prefix="ijepa.",
    ignored_config=vit.IGNORED_CONFIG,
)

register(IJEPA)
