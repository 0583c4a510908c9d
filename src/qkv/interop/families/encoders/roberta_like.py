"""Encoders of RoBERTa's structure with additional tensors, which the computation for text does not use.

LUKE (Yamada et al. 2020) has tables and queries for entities; I-BERT (Kim et al. 2021) also stores integer weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common.heads import (
    HeadKeys,
    classification,
    gelu_transform,
    masked,
    pooler,
    tagging,
    written_back,
)
from qkv.interop.families.encoders import bert, roberta
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Architecture, Family, Reasons
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model

# LUKE

_ENTITIES = {
    "luke.entity_embeddings.*": "part of the entity embeddings, which qkv does not have",
    "luke.encoder.layer.{layer}.attention.self.*2*_query.*": "part of the entity embeddings, which qkv does not have",
    "entity_predictions.*": "part of the entity embeddings, which qkv does not have",
}


_DECODER = "lm_head.decoder."


def _luke_words(config: Config) -> dict[str, Any]:
    """Return the fields of the head, which newer versions of transformers never tie, regardless of the config."""
    tied = config.flag("tie_word_embeddings", True) and not config.beside(f"{_DECODER}weight")
    return {**gelu_transform(config), "tied": tied}


_LUKE_WORDS = replace(
    masked({**roberta.MASKED_NAMES, "head.bias": f"{_DECODER}bias"}, _luke_words), kept=written_back(pooler("luke."))
)


def _of_luke() -> dict[str, Architecture]:
    """Return the architectures of LUKE for text without entities."""
    usual = roberta.architectures("Luke", "luke.")
    usual["LukeForMaskedLM"] = _LUKE_WORDS
    usual["LukeForSequenceClassification"] = classification("luke.pooler.dense", "classifier")
    return {name: each for name, each in usual.items() if "Causal" not in name}


def _luke_config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not RoBERTa's.

    Tables of entities get the minimum size of one entity.
    """
    keys = roberta.config(spec)
    alone = {"entity_vocab_size": 1, "entity_emb_size": 1, "use_entity_aware_attention": False}
    return keys and {**keys, **alone}


LUKE = Family(
    name="LUKE",
    base="RoBERTa",
    model_types=("luke",),
    architectures=_of_luke(),
    spec=roberta.spec,
    config=_luke_config,
    names=bert.names("luke."),
    prefix="luke.",
    defaults={"vocab_size": 50267},
    ignored={
        **_ENTITIES,
        "luke.embeddings.position_ids": "constant position ids 0, 1, 2, …",
        "lm_head.bias": "the same as lm_head.decoder.bias",
    },
    older={"lm_head.bias": f"{_DECODER}bias"},
    ignored_config={
        **bert.IGNORED_CONFIG,
        **dict.fromkeys(
            ("entity_vocab_size", "entity_emb_size", "use_entity_aware_attention", "cls_entity_prediction"),
            "part of the entity embeddings, which qkv does not have",
        ),
    },
)

# I-BERT


def _ibert(config: Config, head: Head) -> Model:
    """Build the spec of I-BERT in floating-point mode: RoBERTa's."""
    config.fixed("quant_mode", False, "all products, which then use integers")
    config.fixed("position_embedding_type", "absolute", "the position encoding")
    return roberta.spec(config, head)


_PARTS = ("weight_integer", "bias_integer", "weight_scaling_factor", "fc_scaling_factor", "shift")
_INTEGERS: Reasons = {
    f"ibert.*.{part}": "used in integer mode only, which is off"
    for part in (*_PARTS, "x_min", "x_max", "act_scaling_factor")
}
_IBERT_HEADS = {name: each for name, each in roberta.architectures("IBert", "ibert.").items() if "Causal" not in name}
IBERT = Family(
    name="I-BERT",
    base="RoBERTa",
    model_types=("ibert",),
    architectures={
        **_IBERT_HEADS,
        "IBertForSequenceClassification": classification(
            "classifier.dense", "classifier.out_proj", keys=HeadKeys(dropout="hidden_dropout_prob")
        ),
        "IBertForTokenClassification": tagging("classifier", keys=HeadKeys(dropout="hidden_dropout_prob")),
    },
    spec=_ibert,
    config=roberta.config,
    names=bert.names("ibert."),
    prefix="ibert.",
    ignored={
        **_INTEGERS,
        "ibert.embeddings.position_ids": "constant position ids 0, 1, 2, …",
    },
    ignored_config={**bert.IGNORED_CONFIG, "force_dequant": "used in integer mode only, which is off"},
)

register(LUKE, IBERT)
