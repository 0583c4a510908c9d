"""Image towers of CLIP (Radford et al. 2021), MetaCLIP 2 (Chuang et al. 2025) and SigLIP (Zhai et al. 2023).

A tower is published with a classifier, or beside a text tower (``multimodal/clip.py``). CLIP has a class token, no bias
in the patch projection, and a norm of the embeddings but none at the end; its classifier reads the mean of the patches.
SigLIP has neither class token nor norm of the embeddings, and its classifier reads the mean of all positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.shape import shape_of
from qkv.interop.families.images import vit
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV
from qkv.interop.mapping.family import Architecture
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head
from qkv.spec.masks import Full
from qkv.spec.model import Block, Model
from qkv.spec.parts import LayerNorm, NoNorm
from qkv.spec.signals.images import Patches

BODY = "vision_model."


def layer_names(tower: str) -> tuple[NameRule, ...]:
    """Return the rules of a tower's layers, image or text, whose published names begin with ``tower``."""
    layer = f"{tower}encoder.layers.{{layer}}."
    return (
        NameRule("blocks.{layer}.branches.0.norm.*", f"{layer}layer_norm1.*"),
        NameRule(
            "blocks.{layer}.branches.0.body.qkv.*", tuple(f"{layer}self_attn.{part}_proj.*" for part in "qkv"), QKV
        ),
        NameRule("blocks.{layer}.branches.0.body.output.*", f"{layer}self_attn.out_proj.*"),
        NameRule("blocks.{layer}.branches.1.norm.*", f"{layer}layer_norm2.*"),
        NameRule("blocks.{layer}.branches.1.body.up.*", f"{layer}mlp.fc1.*"),
        NameRule("blocks.{layer}.branches.1.body.down.*", f"{layer}mlp.fc2.*"),
    )


NAMES = (
    NameRule("frontend.first", f"{BODY}embeddings.class_embedding"),
    NameRule("frontend.map.*", f"{BODY}embeddings.patch_embedding.*"),
    NameRule("frontend.positions.table", f"{BODY}embeddings.position_embedding.weight"),
    NameRule("frontend.norm.*", f"{BODY}pre_layrnorm.*"),
    *layer_names(BODY),
    NameRule("norm.*", f"{BODY}post_layernorm.*"),
)


@dataclass(frozen=True)
class ImageTower:
    """Kind of tower. ``patch``, ``activation`` and ``eps``: defaults of config keys."""

    class_token: bool
    patch: int
    activation: str
    eps: float
    unread: Reasons = field(default_factory=dict)
    """Tensors in the files that do not affect the final vectors, with the reason."""

    def spec(self, config: Config, head: Head) -> Model:
        """Build the spec from the config of a tower without the other tower."""
        norm = LayerNorm(eps=config.number("layer_norm_eps", self.eps))
        attention = Attention(
            num_heads=config.size("num_attention_heads", 12),
            mask=Full(),
            dropout=config.number("attention_dropout", 0.0),
        )
        network = FeedForward(
            hidden=config.size("intermediate_size", 3072),
            activation=config.word("hidden_act", self.activation, INWARD),
        )
        embeds = vit.frontend(config, self.patch).changed(class_token=self.class_token, bias=not self.class_token)
        embeds = embeds.changed(dropout=0.0, norm=norm if self.class_token else NoNorm())
        return Model(
            width=config.size("hidden_size", 768),
            num_layers=config.layers("num_hidden_layers", 12),
            context_length=embeds.num_positions or 1,
            frontend=embeds,
            blocks=(Block(branches=(attention, network), norm=norm),),
            norm=NoNorm() if self.class_token else norm,
            head=head,
        )

    def config(self, spec: Model) -> dict[str, Any] | None:
        """Return the config keys of a tower for ``spec``; None if its structure differs."""
        match shape_of(spec):
            case (
                Block(branches=(Attention() as attention, FeedForward() as network), norm=LayerNorm() as norm),
                Patches() as embeds,
            ) if embeds.class_token == self.class_token:
                size = vit.trained_size(embeds)
            case _:
                return None
        if size is None or size[0] != size[1]:
            return None
        return {
            "hidden_size": spec.width,
            "num_hidden_layers": len(spec.layers),
            "num_attention_heads": attention.num_heads,
            "attention_dropout": attention.dropout,
            "intermediate_size": network.hidden_at(spec.width),
            "hidden_act": OUTWARD[network.activation],
            "layer_norm_eps": norm.eps,
            "image_size": size[0],
            "patch_size": embeds.patch,
            "num_channels": embeds.channels,
        }

    def of_whole(self, config: Config, head: Head) -> Model:
        """Build the spec from a config of both towers, of which only the image tower is read."""
        inner = config.table("vision_config")
        model = self.spec(inner, head)
        inner.leave_unread(INNER)
        return model

    def config_of_whole(self, spec: Model) -> dict[str, Any] | None:
        """Return config.json keys of a model of both towers, with the image tower's keys in a table."""
        keys = self.config(spec)
        return keys and {"vision_config": keys}


INNER: Reasons = {
    "initializer_factor": "initialisation of weights",
    "initializer_range": "initialisation of weights",
    "projection_dim": "width of the projection to the joint space of texts and images, which is not used",
    "vision_use_head": "the pooling head, which is not used",
    "dropout": "from older versions; no effect",
}
OUTER: Reasons = {
    **INNER,
    "text_config": "the text tower, which is not part of this model",
    **dict.fromkeys(("text_config_dict", "vision_config_dict"), "from older versions; no effect"),
    "logit_scale_init_value": "initialisation of the scale of similarities",
}
_AT_THE_END = {f"{BODY}post_layernorm.*": "norm of the pooled vector, which this architecture does not use"}
_POOLING = {f"{BODY}head.*": "the pooling head, which this architecture does not use"}
PLACES = {f"{BODY}embeddings.position_ids": "constant position ids 0, 1, 2, …"}
CLIP_TOWER = ImageTower(class_token=True, patch=32, activation="quick_gelu", eps=1e-5, unread=_AT_THE_END)
SIGLIP_TOWER = ImageTower(class_token=False, patch=16, activation="gelu_pytorch_tanh", eps=1e-6, unread=_POOLING)


def classifier(tower: ImageTower) -> Architecture:
    """Build the architecture of the tower with a classifier on the mean of its positions."""
    pooling = "mean_rest" if tower.class_token else "mean"
    return replace(vit.classifier("classifier", pooling), kept=heads.written_back(tower.unread))
