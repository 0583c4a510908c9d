"""Encoders of BERT's structure with RoPE instead of learned positions.

Nomic BERT (Nussbaum et al. 2024), GTE (Zhang et al. 2024) and Jina embeddings v3 (Sturua et al. 2024). Nomic BERT and
GTE have gated feed-forward networks. Jina's adapters for tasks are separate files, which are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.heads import classification, gelu_transform, masked, pooler, tagging
from qkv.interop.families.common.rope import rope_config, rope_of
from qkv.interop.families.common.shape import shape_of
from qkv.interop.families.encoders import bert, roberta
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import PAIR, SWAPPED
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.branches import Attention, Branch, FeedForward, GatedFeedForward
from qkv.spec.heads import Head
from qkv.spec.model import Block, Model, Text
from qkv.spec.parts import LayerNorm, Learned, NoPositions, Rope

Network = Callable[[FeedForward], Branch]
"""Function from BERT's feed-forward network to the family's, with the same size and activation."""


def names(body: str, norm: str, layer: str, parts: Mapping[str, str]) -> tuple[NameRule, ...]:
    """Return the name table without feed-forward networks.

    ``body``: prefix of the names in files; ``norm``: name of the norm of the embeddings; ``layer``: pattern of a layer;
    ``parts``: name of a part of a layer in qkv -> published name.
    """
    return (
        NameRule("frontend.table", f"{body}embeddings.word_embeddings.weight"),
        NameRule("frontend.types", f"{body}embeddings.token_type_embeddings.weight"),
        NameRule("frontend.norm.*", f"{body}{norm}.*"),
        *(NameRule(f"blocks.{{layer}}.branches.{ours}.*", f"{body}{layer}.{part}.*") for ours, part in parts.items()),
    )


def reader(network: Network, bias: bool) -> Callable[[Config, Head], Model]:
    """Return a function from a config to a spec. ``bias``: whether attention has biases."""

    def read(config: Config, head: Head) -> Model:
        norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-12))
        model = bert.structure(config, head, 0, 0, norm)
        (block,) = model.blocks
        attention, feed_forward = block.branches
        dim = config.size("head_dim") if config.has("head_dim") else None
        rotated = attention.changed(relative=rope_of(config), bias=bias, head_dim=dim)
        assert isinstance(feed_forward, FeedForward)
        return model.changed(
            blocks=(block.changed(branches=(rotated, network(feed_forward))),),
            frontend=model.frontend.changed(positions=NoPositions(), types=config.integer("type_vocab_size", 2)),
        )

    return read


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure differs. Callers read them back to verify."""
    match shape_of(spec):
        case (
            Block(branches=(Attention(relative=Rope() as rope) as attention, network), order="post") as block,
            Text(positions=NoPositions()) as frontend,
        ) if isinstance(network, FeedForward | GatedFeedForward):
            plain = FeedForward(hidden=network.hidden_at(spec.width), activation=network.activation)
        case _:
            return None
    as_bert = block.changed(branches=(attention, plain))
    keys, turned = (
        bert.keys(spec.changed(blocks=(as_bert,), frontend=frontend.changed(positions=Learned()))),
        rope_config(rope),
    )
    if keys is None or turned is None:
        return None
    return {**keys, **turned, "type_vocab_size": frontend.types, "head_dim": attention.dims(spec.width)[0]}


def _gate(feed_forward: FeedForward) -> Branch:
    activation: Any = feed_forward.activation  # these config keys have no activation with learned numbers
    return GatedFeedForward(hidden=feed_forward.hidden, activation=activation, bias=False)


def _gate_with_bias(feed_forward: FeedForward) -> Branch:
    dropout = feed_forward.dropout
    return _gate(feed_forward).changed(output_bias=True, dropout=dropout)


NOMIC_WORDS = {
    **bert.MASKED_NAMES,
    "head.transform.norm.*": "cls.predictions.transform.layer_norm.*",
}
GTE_WORDS = {
    **roberta.MASKED_NAMES,
    "head.bias": "lm_head.decoder.bias",
    "head.transform.norm.*": "lm_head.norm.*",
}


def _architectures(stem: str, prefix: str, words: Architecture) -> dict[str, Architecture]:
    unread = pooler(prefix)
    return {
        f"{stem}ForMaskedLM": words,
        f"{stem}Model": heads.body(f"{prefix}embeddings.word_embeddings.weight", kept=unread),
        f"{stem}ForSequenceClassification": classification(f"{prefix}pooler.dense", "classifier"),
        f"{stem}ForTokenClassification": tagging("classifier", unread),
    }


_NOMIC_PARTS = {
    "0.body.qkv": "attn.Wqkv",
    "0.body.output": "attn.out_proj",
    "0.norm": "norm1",
    "1.body.down": "mlp.fc2",
    "1.norm": "norm2",
}
_GATE_UP = NameRule(
    "blocks.{layer}.branches.1.body.gate_up.*",
    ("nomic_bert.encoder.layers.{layer}.mlp.fc12.*", "nomic_bert.encoder.layers.{layer}.mlp.fc11.*"),
    PAIR,
)
NOMIC = Family(
    name="Nomic BERT",
    model_types=("nomic_bert",),
    architectures=_architectures("NomicBert", "nomic_bert.", masked(NOMIC_WORDS)),
    spec=reader(_gate, bias=False),
    config=config,
    names=(*names("nomic_bert.", "emb_ln", "encoder.layers.{layer}", _NOMIC_PARTS), _GATE_UP),
    prefix="nomic_bert.",
    defaults={
        "vocab_size": 30528,
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": 2048,
        "rope_theta": 1000.0,
    },
    ignored_config={"classifier_dropout": "part of a head that this architecture lacks"},
)
_GTE_PARTS = {
    "0.body.qkv": "attention.qkv_proj",
    "0.body.output": "attention.o_proj",
    "0.norm": "attn_ln",
    "1.body.down": "mlp.down_proj",
    "1.norm": "mlp_ln",
}
_UP_GATE = NameRule("blocks.{layer}.branches.1.body.gate_up.*", "gte.encoder.layer.{layer}.mlp.up_gate_proj.*", SWAPPED)
GTE = Family(
    name="GTE",
    model_types=("gte",),
    architectures=_architectures("Gte", "gte.", masked(GTE_WORDS, gelu_transform)),
    spec=reader(_gate_with_bias, bias=True),
    config=config,
    names=(*names("gte.", "embeddings.LayerNorm", "encoder.layer.{layer}", _GTE_PARTS), _UP_GATE),
    prefix="gte.",
    defaults={
        "vocab_size": 250048,
        "attention_probs_dropout_prob": 0.0,
        "max_position_embeddings": 8192,
        "type_vocab_size": 1,
        "rope_theta": 160000.0,
    },
    ignored_config=heads.HEAD_KEYS,
)
_JINA_PARTS = {
    "0.body.qkv": "mixer.Wqkv",
    "0.body.output": "mixer.out_proj",
    "0.norm": "norm1",
    "1.body.up": "mlp.fc1",
    "1.body.down": "mlp.fc2",
    "1.norm": "norm2",
}
JINA = Family(
    name="Jina embeddings v3",
    model_types=("jina_embeddings_v3",),
    architectures=roberta.architectures("JinaEmbeddingsV3", "roberta."),
    spec=reader(lambda feed_forward: feed_forward, bias=True),
    config=config,
    names=names("roberta.", "emb_ln", "encoder.layers.{layer}", _JINA_PARTS),
    prefix="roberta.",
    defaults={
        "vocab_size": 250002,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "max_position_embeddings": 8194,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "rope_theta": 20000.0,
    },
    ignored_config=heads.HEAD_KEYS,
)

register(NOMIC, GTE, JINA)
