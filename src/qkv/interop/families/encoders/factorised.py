"""Encoders of BERT's structure with factorised embeddings: vectors of E features and a linear map to the model's width.

ALBERT (Lan et al. 2020), ELECTRA (Clark et al. 2020) and RemBERT (Chung et al. 2021). ALBERT repeats the same layers.
ELECTRA's discriminator predicts for each token whether it was replaced: here a token classification with one class. In
training, ELECTRA's classification head also applies dropout to the first position's vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.interop.families.common import heads
from qkv.interop.families.common.activations import INWARD, OUTWARD
from qkv.interop.families.common.heads import (
    HeadKeys,
    answering,
    classification,
    gelu_transform,
    masked,
    masked_or_causal,
    pooler,
    tagging,
    transform,
)
from qkv.interop.families.encoders import bert
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import QKV
from qkv.interop.mapping.family import Architecture, Family
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.interop.registry import register
from qkv.spec.heads import Head, LanguageModelHead, TokenHead, VectorsHead
from qkv.spec.model import Model, Text
from qkv.system.errors import UserError


def embedding_width(spec: Model) -> int | None:
    """Return the number of features of the embeddings before their map to the model's width; None without a map."""
    return spec.frontend.embedding_width if isinstance(spec.frontend, Text) else None


def without_map(spec: Model) -> Model:
    """Return the spec without the linear map of its embeddings and without its head, which may share their table.

    A head that reads the encoder, which no family with such a map has, stays.
    """
    if spec.head.reads_memory:
        return spec
    words = spec.frontend.changed(embedding_width=None) if isinstance(spec.frontend, Text) else spec.frontend
    return spec.changed(frontend=words, head=VectorsHead())


def with_map(model: Model, head: Head, features: int | None) -> Model:
    """Return the model with ``head`` and embeddings of ``features`` features (None: no map); see ``without_map``."""
    return model.changed(frontend=model.frontend.changed(embedding_width=features), head=head)


def narrow(key: str, default: int, gelu: bool = False) -> heads.Fields:
    """Return a function from a config to the fields of a masked language model head.

    The head's transform has as many features as the config's ``key``, by default ``default``. ``gelu``: φ is GELU, not
    ``hidden_act``.
    """

    def fields(config: Config) -> dict[str, Any]:
        wide = (gelu_transform if gelu else transform)(config)
        return {**wide, "transform_width": config.size(key, default)}

    return fields


# ELECTRA


def _electra(config: Config, head: Head) -> Model:
    """Build the spec of ELECTRA: like BERT, with an embedding map if ``embedding_size`` is not ``hidden_size``."""
    model, size = bert.spec(config, VectorsHead()), config.size("embedding_size", 128)
    return with_map(model, head, None if size == model.width else size)


def _electra_config(spec: Model) -> dict[str, Any] | None:
    keys = bert.config(without_map(spec))
    return keys and {**keys, "embedding_size": embedding_width(spec) or spec.width}


def _replaced(config: Config) -> Head:
    width, activation = config.size("hidden_size", 256), config.word("hidden_act", "gelu", INWARD)
    return TokenHead(num_classes=1, hidden=width, activation=activation)


def _replaced_keys(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, TokenHead) or head.num_classes != 1 or head.hidden is None:
        return None
    return {"hidden_act": OUTWARD[head.activation]}


_REPLACED = (
    NameRule("head.hidden.*", "discriminator_predictions.dense.*"),
    NameRule("head.output.*", "discriminator_predictions.dense_prediction.*"),
)
_GENERATED = {
    "head.weight": "generator_lm_head.weight",
    "head.bias": "generator_lm_head.bias",
    "head.transform.dense.*": "generator_predictions.dense.*",
    "head.transform.norm.*": "generator_predictions.LayerNorm.*",
}
_SUMMARY = ("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout")
ELECTRA = Family(
    name="ELECTRA",
    model_types=("electra",),
    architectures={
        **masked_or_causal(
            "ElectraForMaskedLM",
            "ElectraForCausalLM",
            masked(_GENERATED, narrow("embedding_size", 128, gelu=True)),
        ),
        "ElectraForPreTraining": Architecture(_replaced, _replaced_keys, _REPLACED),
        "ElectraModel": heads.vectors(),
        "ElectraForSequenceClassification": classification(
            "classifier.dense", "classifier.out_proj", activation="gelu"
        ),
        "ElectraForTokenClassification": tagging("classifier"),
        "ElectraForQuestionAnswering": answering("qa_outputs"),
    },
    spec=_electra,
    config=_electra_config,
    names=(*bert.names("electra."), NameRule("frontend.projection.*", "electra.embeddings_project.*")),
    prefix="electra.",
    defaults={"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024},
    ignored={"electra.embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config={**bert.IGNORED_CONFIG, **dict.fromkeys(_SUMMARY, "part of the head for multiple choice")},
)

# ALBERT

_LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.{layer}."
_ALBERT_NAMES = (
    NameRule("frontend.projection.*", "albert.encoder.embedding_hidden_mapping_in.*"),
    *(row for row in bert.names("albert.") if row.ours.startswith("frontend.")),
    NameRule(
        "blocks.{layer}.branches.0.body.qkv.*",
        tuple(f"{_LAYER}attention.{part}.*" for part in ("query", "key", "value")),
        QKV,
    ),
    NameRule("blocks.{layer}.branches.0.body.output.*", f"{_LAYER}attention.dense.*"),
    NameRule("blocks.{layer}.branches.0.norm.*", f"{_LAYER}attention.LayerNorm.*"),
    NameRule("blocks.{layer}.branches.1.body.up.*", f"{_LAYER}ffn.*"),
    NameRule("blocks.{layer}.branches.1.body.down.*", f"{_LAYER}ffn_output.*"),
    NameRule("blocks.{layer}.branches.1.norm.*", f"{_LAYER}full_layer_layer_norm.*"),
)


def _albert(config: Config, head: Head) -> Model:
    """Build the spec of ALBERT: ``inner_group_num`` layers, applied ``num_hidden_layers`` times."""
    config.fixed("num_hidden_groups", 1, "which layers share weights")
    inner, rounds = config.layers("inner_group_num", 1), config.integer("num_hidden_layers", 12)
    if not 1 <= rounds <= 1000:
        raise UserError(f"{config.source}: num_hidden_layers is {rounds}, but it should be at least 1 and at most 1000")
    named = {"num_hidden_layers": "inner_group_num"}
    model = bert.body(config, VectorsHead(), 0, config.size("type_vocab_size", 2), named)
    return with_map(model, head, config.size("embedding_size", 128)).changed(num_layers=inner, rounds=rounds)


def _albert_config(spec: Model) -> dict[str, Any] | None:
    keys, size = bert.config(without_map(spec.changed(rounds=1))), embedding_width(spec)
    if keys is None or size is None:
        return None
    again = {"num_hidden_layers": spec.rounds, "inner_group_num": spec.depth, "num_hidden_groups": 1}
    return {**keys, **again, "embedding_size": size}


_ALBERT_HEAD = {
    "head.weight": "predictions.decoder.weight",
    "head.bias": "predictions.bias",
    "head.transform.dense.*": "predictions.dense.*",
    "head.transform.norm.*": "predictions.LayerNorm.*",
}
_RATE = HeadKeys(dropout="classifier_dropout_prob")
_UNREAD_RATE = {"classifier_dropout_prob": "part of a head that this architecture lacks"}


def architectures(
    stem: str, words: Mapping[str, str], fields: heads.Fields, unread: Reasons
) -> dict[str, Architecture]:
    """Return the architectures of ALBERT and RemBERT by name.

    ``words`` and ``fields``: tensor names and fields of the masked language model head; ``unread``: tensors of the
    pooler, with the reason why heads without a pooler ignore them.
    """
    return {
        f"{stem}ForMaskedLM": masked(words, fields, unread),
        f"{stem}Model": heads.vectors(kept=unread),
        f"{stem}ForSequenceClassification": classification(
            next(iter(unread)).removesuffix(".*"), "classifier", keys=_RATE
        ),
        f"{stem}ForTokenClassification": tagging("classifier", unread, _RATE),
        f"{stem}ForQuestionAnswering": answering("qa_outputs", unread),
    }


_POOLER = {"albert.pooler.*": "part of the pooler, which this architecture does not use"}
_ORDER = {"sop_classifier.classifier.*": "sentence-order head, used in pretraining only"}
_ALBERT_HEADS = architectures("Albert", _ALBERT_HEAD, narrow("embedding_size", 128), _POOLER)
ALBERT = Family(
    name="ALBERT",
    model_types=("albert",),
    architectures={
        **_ALBERT_HEADS,
        "AlbertForPreTraining": masked(
            _ALBERT_HEAD,
            narrow("embedding_size", 128),
            {**_POOLER, **_ORDER},
        ),
    },
    spec=_albert,
    config=_albert_config,
    names=_ALBERT_NAMES,
    prefix="albert.",
    defaults={
        "vocab_size": 30000,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.1,
    },
    ignored={"albert.embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config={
        **bert.IGNORED_CONFIG,
        **_UNREAD_RATE,
        **dict.fromkeys(("net_structure_type", "gap_size", "num_memory_blocks", "down_scale_factor"), "unused"),
    },
)

# RemBERT


def _rembert(config: Config, head: Head) -> Model:
    """Build the spec of RemBERT: the output matrix has a different width from the embeddings and is never tied."""
    return with_map(bert.spec(config, VectorsHead()), head, config.size("input_embedding_size", 256))


def _rembert_config(spec: Model) -> dict[str, Any] | None:
    keys, size = bert.config(without_map(spec)), embedding_width(spec)
    if keys is None or size is None:
        return None
    width = spec.head.transform_width if isinstance(spec.head, LanguageModelHead) else None
    return {**keys, "input_embedding_size": size, **({"output_embedding_size": width} if width else {})}


_REMBERT_HEAD = {
    "head.weight": "cls.predictions.decoder.weight",
    "head.bias": "cls.predictions.decoder.bias",
    "head.transform.dense.*": "cls.predictions.dense.*",
    "head.transform.norm.*": "cls.predictions.LayerNorm.*",
}


def _rembert_words(config: Config) -> dict[str, Any]:
    """Return the fields of the head, which is untied regardless of ``tie_word_embeddings``."""
    return {**narrow("output_embedding_size", 1664)(config), "tied": False}


_REMBERT_HEADS = architectures("RemBert", _REMBERT_HEAD, _rembert_words, pooler("rembert."))
REMBERT = Family(
    name="RemBERT",
    model_types=("rembert",),
    architectures={
        **_REMBERT_HEADS,
        **masked_or_causal("RemBertForMaskedLM", "RemBertForCausalLM", _REMBERT_HEADS["RemBertForMaskedLM"]),
    },
    spec=_rembert,
    config=_rembert_config,
    names=(*bert.names("rembert."), NameRule("frontend.projection.*", "rembert.encoder.embedding_hidden_mapping_in.*")),
    prefix="rembert.",
    defaults={
        "vocab_size": 250300,
        "hidden_size": 1152,
        "num_hidden_layers": 32,
        "num_attention_heads": 18,
        "intermediate_size": 4608,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.1,
    },
    ignored={"rembert.embeddings.position_ids": "constant position ids 0, 1, 2, …"},
    ignored_config={
        **bert.IGNORED_CONFIG,
        **_UNREAD_RATE,
        "output_embedding_size": "part of a head that this architecture lacks",
    },
)

register(ELECTRA, ALBERT, REMBERT)
