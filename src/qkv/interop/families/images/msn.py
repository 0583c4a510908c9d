"""ViT-MSN (Assran et al. 2022): ViT pretrained by masked siamese networks, without a pooler.

In its files, the tensor names of the blocks lack the prefix of the body, unlike those of the embeddings.
"""

from __future__ import annotations

from dataclasses import replace

from qkv.interop.families.common import heads
from qkv.interop.families.images import vit
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register

_BLOCKS = "encoder."


def _name(row: NameRule) -> NameRule:
    return row if row.published[0].startswith(_BLOCKS) else row.below(vit.VIT.prefix)


_UNUSED = vit.mask("vit.")
MSN = replace(
    vit.VIT,
    name="ViT-MSN",
    base="ViT",
    model_types=("vit_msn",),
    architectures={
        "ViTMSNForImageClassification": vit.classifier("classifier", ignored=_UNUSED),
        "ViTMSNModel": heads.vectors(kept=_UNUSED),
    },
    names=tuple(map(_name, vit.names(""))),
    older={f"vit.{_BLOCKS}": _BLOCKS},
    defaults={"layer_norm_eps": 1e-6},
)

register(MSN)
