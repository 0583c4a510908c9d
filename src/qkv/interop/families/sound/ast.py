"""AST (Gong et al. 2021): ViT with a distillation token over overlapping patches of log-mel frames.

The head is a norm and a linear map of the mean of the first two positions.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.activations import OUTWARD
from qkv.interop.families.common.heads import label_count, problem_keys, vectors
from qkv.interop.families.common.shape import shape_of
from qkv.interop.families.images import vit
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import Broadcast
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import FeedForward
from qkv.spec.heads import ClassificationHead, Head
from qkv.spec.model import Model
from qkv.spec.parts import LayerNorm
from qkv.spec.signals.sound import MelPatches
from qkv.system.errors import UserError

_BODY = "audio_spectrogram_transformer."
_TOKENS = 2
"""Number of learned first positions: the class token and the distillation token."""


def spec(config: Config, head: Head) -> Model:
    """Build the spec of a config: ViT's body over patches of frames. Raises ``UserError`` for uneven strides."""
    bands, frames = config.size("frequency_stride", 10), config.size("time_stride", 10)
    if bands != frames:
        raise UserError(
            f"{config.source}: frequency_stride is {bands} and time_stride {frames}, but qkv supports equal ones only"
        )
    patches = MelPatches(
        patch=config.size("patch_size", 16),
        stride=bands,
        class_token=True,
        extra_tokens=_TOKENS - 1,
        height=config.size("num_mel_bins", 128),
        width=config.size("max_length", 1024),
        channels=1,
        dropout=config.number("hidden_dropout_prob", 0.0),
    )
    return vit.body(config, head, vit.feed_forward(config), patches)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    block, embeds = shape_of(spec)
    second = block.branches[-1] if block else None
    values = vit.keys(spec)
    if values is None or not isinstance(second, FeedForward) or not isinstance(embeds, MelPatches):
        return None
    for key in ("image_size", "num_channels"):
        del values[key]
    return {
        **values,
        "intermediate_size": second.hidden_at(spec.width),
        "hidden_act": OUTWARD.get(second.activation),
        "frequency_stride": embeds.stride,
        "time_stride": embeds.stride,
        "num_mel_bins": embeds.height,
        "max_length": embeds.width,
    }


def _read_head(config: Config) -> Head:
    norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-12))
    return ClassificationHead(pooling="mean_first", leading=_TOKENS, norm=norm, num_classes=label_count(config))


def _write_head(head: Head) -> dict[str, Any] | None:
    match head:
        case ClassificationHead(pooling="mean_first", leading=2, norm=LayerNorm()):
            return problem_keys(head)
    return None


AST = Family(
    name="AST",
    model_types=("audio-spectrogram-transformer",),
    architectures={
        "ASTForAudioClassification": Architecture(
            _read_head,
            _write_head,
            (NameRule("head.norm.*", "classifier.layernorm.*"), NameRule("head.output.*", "classifier.dense.*")),
        ),
        "ASTModel": vectors(),
    },
    spec=spec,
    config=config,
    names=(
        *vit.names(_BODY),
        NameRule("frontend.extra", f"{_BODY}embeddings.distillation_token", Broadcast()),
    ),
    prefix=_BODY,
)

register(AST)
