"""DistilBERT (Sanh et al. 2019): BERT's structure without token types and pooler, with other names."""

from __future__ import annotations

from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.activations import INWARD
from qkv.interop.families.common.heads import HeadKeys, answering, classification, masked, tagging
from qkv.interop.families.encoders import bert
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV
from qkv.interop.mapping.family import Family
from qkv.interop.mapping.names import NameRule
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model, Text
from qkv.spec.parts import LayerNorm

NORM = LayerNorm(eps=1e-12)
"""Norm of all branches and embeddings; its ε is constant."""
_LAYER = "distilbert.transformer.layer.{layer}."
NAMES = (
    NameRule("frontend.table", "distilbert.embeddings.word_embeddings.weight"),
    NameRule("frontend.positions.table", "distilbert.embeddings.position_embeddings.weight"),
    NameRule("frontend.norm.*", "distilbert.embeddings.LayerNorm.*"),
    NameRule("blocks.{layer}.branches.0.body.qkv.*", tuple(f"{_LAYER}attention.{part}_lin.*" for part in "qkv"), QKV),
    NameRule("blocks.{layer}.branches.0.body.output.*", f"{_LAYER}attention.out_lin.*"),
    NameRule("blocks.{layer}.branches.0.norm.*", f"{_LAYER}sa_layer_norm.*"),
    NameRule("blocks.{layer}.branches.1.body.up.*", f"{_LAYER}ffn.lin1.*"),
    NameRule("blocks.{layer}.branches.1.body.down.*", f"{_LAYER}ffn.lin2.*"),
    NameRule("blocks.{layer}.branches.1.norm.*", f"{_LAYER}output_layer_norm.*"),
)
MASKED_NAMES = {
    "head.weight": "vocab_projector.weight",
    "head.bias": "vocab_projector.bias",
    "head.transform.dense.*": "vocab_transform.*",
    "head.transform.norm.*": "vocab_layer_norm.*",
}
NAMED = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
"""BERT's config keys -> DistilBERT's."""


def spec(config: Config, head: Head) -> Model:
    """Build the spec of DistilBERT: D = dim, n_layers blocks, hidden_dim hidden features."""
    return bert.structure(config, head, 0, 0, NORM, NAMED)


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not DistilBERT's. Callers read them back to
    verify.
    """
    keys = bert.keys(spec, NAMED)
    if keys is None or not isinstance(spec.frontend, Text) or spec.frontend.types:
        return None
    return {key: value for key, value in keys.items() if key != "layer_norm_eps"}


def _transform(config: Config) -> dict[str, Any]:
    return {"transform": config.word("activation", "gelu", INWARD), "norm": NORM}


_CLASSES, _TAGS = HeadKeys("dim", "seq_classif_dropout", "dropout"), HeadKeys("dim", "dropout", "dropout")

DISTILBERT = Family(
    name="DistilBERT",
    model_types=("distilbert",),
    architectures={
        "DistilBertForMaskedLM": masked(MASKED_NAMES, _transform),
        "DistilBertModel": heads.body("distilbert.embeddings.word_embeddings.weight"),
        "DistilBertForSequenceClassification": classification(
            hidden="pre_classifier", output="classifier", activation="relu", keys=_CLASSES
        ),
        "DistilBertForTokenClassification": tagging("classifier", keys=_TAGS),
        "DistilBertForQuestionAnswering": answering("qa_outputs", dropout="qa_dropout"),
    },
    spec=spec,
    config=config,
    names=NAMES,
    prefix="distilbert.",
    defaults={"n_layers": 6, "seq_classif_dropout": 0.2, "qa_dropout": 0.1},
    synonyms={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    ignored={"distilbert.embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config={
        **dict.fromkeys(("seq_classif_dropout", "qa_dropout"), "part of a head that this architecture lacks"),
        "tie_word_embeddings": "part of a head that this architecture lacks",
        "sinusoidal_pos_embds": "initialisation of the position table, which is stored",
        "tie_weights_": "from older versions; no effect",
    },
)

register(DISTILBERT)
