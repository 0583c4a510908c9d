"""Encoders of BERT's or RoBERTa's structure with pre-norm blocks and a final norm.

Megatron-BERT (Shoeybi et al. 2019), RoBERTa-PreLayerNorm (Ott et al. 2019) and XLM-RoBERTa-XL (Goyal et al. 2021).
Megatron-BERT and XLM-RoBERTa-XL have no norm of the embeddings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qkv.interop.families.common.heads import HeadKeys
from qkv.interop.families.encoders import bert, roberta
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model, Text
from qkv.spec.parts import NoNorm

Read = Callable[[Config, Head], Model]
Write = Callable[[Model], dict[str, Any] | None]


def reader(post: Read, embedding_norm: bool) -> Read:
    """Return a function from a config to a pre-norm spec.

    ``post``: the function for the same structure with post-norm blocks. ``embedding_norm``: True if the embeddings have
    a norm.
    """

    def read(config: Config, head: Head) -> Model:
        model = post(config, head)
        (block,) = model.blocks
        first = model.frontend if embedding_norm else model.frontend.changed(norm=NoNorm())
        return model.changed(blocks=(block.changed(order="pre"),), norm=block.norm, frontend=first)

    return read


def writer(post: Write, embedding_norm: bool) -> Write:
    """Return a function from a pre-norm spec to config keys (None for other structures), the inverse of ``reader``."""

    def write(spec: Model) -> dict[str, Any] | None:
        frontend = spec.frontend
        if not isinstance(frontend, Text) or frontend.norm.identity == embedding_norm:
            return None
        if spec.norm.identity or any(block.order != "pre" for block in spec.blocks):
            return None
        blocks = tuple(block.changed(order="post") for block in spec.blocks)
        return post(spec.changed(blocks=blocks, norm=NoNorm(), frontend=frontend.changed(norm=spec.norm)))

    return write


def names(body: str, attention: str, feed_forward: str, final: str) -> tuple[NameRule, ...]:
    """Return the name table: BERT's, with the norms before the branches.

    ``attention``, ``feed_forward``: names of the norms before these branches in a layer; ``final``: name of the final
    norm. ``body``: prefix of all names.
    """
    layer = f"{body}encoder.layer.{{layer}}."
    moved = (
        NameRule("blocks.{layer}.branches.0.norm.*", f"{layer}{attention}.*"),
        NameRule("blocks.{layer}.branches.1.norm.*", f"{layer}{feed_forward}.*"),
        NameRule("norm.*", f"{body}{final}.*"),
    )
    return (*moved, *bert.names(body))


MEGATRON = Family(
    name="Megatron-BERT",
    model_types=("megatron-bert",),
    architectures=bert.architectures("MegatronBert", "bert.", HeadKeys(dropout="hidden_dropout_prob")),
    spec=reader(bert.spec, embedding_norm=False),
    config=writer(bert.config, embedding_norm=False),
    names=names("bert.", "attention.ln", "ln", "encoder.ln"),
    prefix="bert.",
    defaults={"vocab_size": 29056, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    | {"intermediate_size": 4096},
    ignored=bert.IGNORED,
    ignored_config=bert.IGNORED_CONFIG,
)
ROBERTA = Family(
    name="RoBERTa-PreLayerNorm",
    model_types=("roberta-prelayernorm",),
    architectures=roberta.architectures("RobertaPreLayerNorm", "roberta_prelayernorm."),
    spec=reader(roberta.spec, embedding_norm=True),
    config=writer(roberta.config, embedding_norm=True),
    names=names("roberta_prelayernorm.", "attention.LayerNorm", "intermediate.LayerNorm", "LayerNorm"),
    prefix="roberta_prelayernorm.",
    defaults={"vocab_size": 50265},
    ignored={"roberta_prelayernorm.embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config=bert.IGNORED_CONFIG,
)
XLM_ROBERTA_XL = Family(
    name="XLM-RoBERTa-XL",
    model_types=("xlm-roberta-xl",),
    architectures=roberta.architectures("XLMRobertaXL", "roberta."),
    spec=reader(roberta.spec, embedding_norm=False),
    config=writer(roberta.config, embedding_norm=False),
    names=names("roberta.", "attention.self_attn_layer_norm", "LayerNorm", "encoder.LayerNorm"),
    prefix="roberta.",
    defaults={"vocab_size": 250880, "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32}
    | {"intermediate_size": 10240, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    ignored={"roberta.embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config=bert.IGNORED_CONFIG,
)

register(MEGATRON, ROBERTA, XLM_ROBERTA_XL)
