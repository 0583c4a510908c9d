"""Longformer (Beltagy et al. 2020): RoBERTa's structure with window attention and global positions.

If the head pools, the first position is global; otherwise the positions of a call's prefix are, such as a question. In
training, transformers also applies dropout to the first position's vector before the classification head.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.encoders import bert, roberta
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention
from qkv.spec.heads import ClassificationHead, Head, RegressionHead
from qkv.spec.masks import Full
from qkv.spec.mixers.sparse_attention import GlobalLocalAttention
from qkv.spec.model import Model
from qkv.system.errors import UserError

_SELF = "longformer.encoder.layer.{layer}.attention.self."
NAMES = (
    *bert.names("longformer."),
    NameRule("blocks.{layer}.branches.0.body.global_query.*", f"{_SELF}query_global.*"),
    NameRule(
        "blocks.{layer}.branches.0.body.global_key_value.*", (f"{_SELF}key_global.*", f"{_SELF}value_global.*"), PAIR
    ),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Longformer: like RoBERTa.

    Layer i has a window of ``attention_window[i]`` / 2 positions to each side.
    """
    config.fixed("attention_mode", "longformer", "the attention mask")
    config.fixed("ignore_attention_mask", False, "masking of padding")
    config.fixed("is_decoder", False, "the attention mask")
    model = roberta.spec(config, head)
    few = 1 if isinstance(head, ClassificationHead | RegressionHead) else None
    (block,) = model.blocks
    attention, feed_forward = block.branches
    assert isinstance(attention, Attention)
    local = GlobalLocalAttention(num_heads=attention.num_heads, num_global=few, dropout=attention.dropout)
    return model.changed(
        blocks=tuple(
            block.changed(branches=(local.changed(window=reach), feed_forward))
            for reach in windows(config, len(model.layers))
        )
    )


def windows(config: Config, layers: int) -> list[int]:
    """Return the window to each side in positions, per layer.

    The config has one number for all layers, or one per layer.
    """
    value = config.values.get("attention_window")
    sizes = (
        config.items("attention_window")
        if isinstance(value, list)
        else [config.integer("attention_window", 512)] * layers
    )
    if len(sizes) != layers:
        raise UserError(
            f"{config.source}: attention_window names {len(sizes)} layers, but num_hidden_layers is {layers}"
        )
    wrong = next((each for each in sizes if not isinstance(each, int) or each < 2 or each % 2), None)
    if wrong is not None:
        raise UserError(
            f"{config.source}: attention_window holds {wrong!r}, but a window must be an even number of at least 2"
        )
    return [each // 2 for each in sizes]


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Longformer's. Callers read them back to
    verify.
    """
    reaches, blocks = [], []
    for block in spec.layers:
        local = block.branches[0]
        if not isinstance(local, GlobalLocalAttention):
            return None
        reaches.append(2 * local.window)
        attention = Attention(num_heads=local.num_heads, mask=Full(), dropout=local.dropout)
        blocks.append(block.changed(branches=(attention, *block.branches[1:])))
    keys = roberta.config(spec.changed(blocks=tuple(blocks)))
    return keys and {**keys, "attention_window": reaches}


LONGFORMER = Family(
    name="Longformer",
    model_types=("longformer",),
    architectures=roberta.architectures("Longformer", "longformer."),
    spec=spec,
    config=config,
    names=NAMES,
    prefix="longformer.",
    ignored={"longformer.embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config={**bert.IGNORED_CONFIG, "onnx_export": "execution setting"},
    older=bert.OLDER,
)

register(LONGFORMER)
