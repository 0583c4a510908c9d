"""ViT-MAE (He et al. 2022): the encoder of a masked autoencoder, which reads all patches here.

The published class omits random patches in every pass and has a decoder, both for pretraining only. Exports are written
as ViT.
"""

from __future__ import annotations

from dataclasses import replace

from qkv.interop.families.images import vit
from qkv.interop.mapping.family import Architecture
from qkv.interop.mapping.names import Reasons
from qkv.interop.registry import register
from qkv.spec.heads import VectorsHead

_OF_PRETRAINING: Reasons = {"decoder.*": "decoder, used in pretraining only"}
_WHOLE = Architecture(lambda config: VectorsHead(), lambda head: None, ignored=_OF_PRETRAINING)
MAE = replace(
    vit.VIT,
    name="ViT-MAE",
    base="ViT",
    model_types=("vit_mae",),
    architectures={"ViTMAEForPreTraining": _WHOLE, "ViTMAEModel": replace(_WHOLE, bare=True)},
    config=lambda spec: None,
    ignored_config={
        **vit.IGNORED_CONFIG,
        **dict.fromkeys(
            (
                "decoder_hidden_size",
                "decoder_intermediate_size",
                "decoder_num_attention_heads",
                "decoder_num_hidden_layers",
                "mask_ratio",
                "norm_pix_loss",
            ),
            "used in pretraining only",
        ),
    },
)

register(MAE)
