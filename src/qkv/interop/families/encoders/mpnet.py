"""MPNet (Song et al. 2020), the body of many sentence models: RoBERTa's structure with relative position biases.

It has no token types, and all layers share one table of biases. Positions start after the padding row, which is row 1
for any ``pad_token_id``.
"""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common.shape import shape_of
from qkv.interop.families.encoders import bert, roberta
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, FeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import LayerNorm, Learned, T5Buckets

RESERVED = 2
DISTANCES = T5Buckets(num_buckets=32, max_distance=128, shared=True)
_LAYER = "mpnet.encoder.layer.{layer}."

NAMES = (
    NameRule("frontend.table", "mpnet.embeddings.word_embeddings.weight"),
    NameRule("frontend.positions.table", "mpnet.embeddings.position_embeddings.weight"),
    NameRule("frontend.norm.*", "mpnet.embeddings.LayerNorm.*"),
    NameRule("blocks.{layer}.branches.0.body.relative.table", "mpnet.encoder.relative_attention_bias.weight"),
    NameRule("blocks.{layer}.branches.0.body.qkv.*", tuple(f"{_LAYER}attention.attn.{part}.*" for part in "qkv"), QKV),
    NameRule("blocks.{layer}.branches.0.body.output.*", f"{_LAYER}attention.attn.o.*"),
    NameRule("blocks.{layer}.branches.0.norm.*", f"{_LAYER}attention.LayerNorm.*"),
    NameRule("blocks.{layer}.branches.1.body.up.*", f"{_LAYER}intermediate.dense.*"),
    NameRule("blocks.{layer}.branches.1.body.down.*", f"{_LAYER}output.dense.*"),
    NameRule("blocks.{layer}.branches.1.norm.*", f"{_LAYER}output.LayerNorm.*"),
)


def spec(config: Config, head: Head) -> Model:
    """Build the spec of MPNet: like BERT, with relative biases and without token types.

    Only 32 rows of the bias table are ever used.
    """
    config.fixed("relative_attention_num_buckets", 32, "the number of distance buckets")
    base = bert.body(config, head, reserved=RESERVED, types=0)
    return base.changed(blocks=tuple(_with(block, DISTANCES) for block in base.blocks))


def _with(block: Block, distances: T5Buckets) -> Block:
    attention, *rest = block.branches
    return block.changed(branches=(attention.changed(relative=distances), *rest))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not MPNet's. Callers read them back to verify."""
    match shape_of(spec):
        case (
            Block(branches=(Attention() as attention, FeedForward()), norm=LayerNorm(), order="post"),
            Text(positions=Learned(), types=0),
        ) if attention.relative == DISTANCES:
            keys = bert.keys(spec)
        case _:
            return None
    return keys and {**keys, "relative_attention_num_buckets": 32}


MPNET = Family(
    name="MPNet",
    model_types=("mpnet",),
    architectures=roberta.architectures("MPNet", "mpnet."),
    spec=spec,
    config=config,
    names=NAMES,
    prefix="mpnet.",
    defaults={"vocab_size": 30527},
    ignored={"mpnet.embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config=bert.IGNORED_CONFIG,
)

register(MPNET)
