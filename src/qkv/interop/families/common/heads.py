"""Heads that many families have: conversion from config and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from qkv.interop.families.common.activations import INWARD
from qkv.interop.families.common.shape import shortest
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.conversions import COPIED
from qkv.interop.mapping.family import Architecture
from qkv.interop.mapping.names import NameRule, Reasons
from qkv.spec.heads import ClassificationHead, Head, LanguageModelHead, RegressionHead, SpanHead, TokenHead, VectorsHead
from qkv.spec.parts import Activation, LayerNorm
from qkv.system.errors import UserError, nearest

HEAD_KEYS: Reasons = dict.fromkeys(
    ("tie_word_embeddings", "classifier_dropout"), "part of a head that this architecture lacks"
)
"""Config keys of heads that every family may ignore, with the reason."""
Reader = Callable[[Config], Head]
Writer = Callable[[Head], dict[str, Any] | None]
Fields = Callable[[Config], dict[str, Any]]
"""Function from a config to fields of a head."""


class HeadKeys(NamedTuple):
    """Config keys that heads read.

    width: width of the model; dropout: rate before the head's last layer; body_dropout: rate of the body, which is used
    if ``dropout`` is missing.
    """

    width: str = "hidden_size"
    dropout: str = "classifier_dropout"
    body_dropout: str = "hidden_dropout_prob"

    def rate(self, config: Config) -> float:
        """Return the dropout rate before a head's last layer."""
        return config.number(self.dropout, config.number(self.body_dropout, 0.1))


BERT_KEYS = HeadKeys()


def language_model(tied: bool, ours: str = "head.weight", theirs: str = "lm_head.weight") -> Architecture:
    """Build an architecture with a language model head, logits = x W^T.

    ``tied``: default of ``tie_word_embeddings``; ``ours`` and ``theirs``: tensor names in qkv and in files.
    """
    return Architecture(_language_model(tied), _tie, (NameRule(ours, theirs),))


def scaled_language_model(tied: bool, key: str, default: float, divides: bool = False) -> Architecture:
    """Build an architecture with the head logits = c x W^T.

    ``key``: config key of the factor c or, with ``divides``, of the divisor 1/c.
    """

    def read(config: Config) -> Head:
        value = config.number(key, default)
        if value <= 0:
            raise UserError(f"{config.source}: {key} is {value:g}, but it should be above 0")
        return LanguageModelHead(tied=config.flag("tie_word_embeddings", tied), scale=1 / value if divides else value)

    def write(head: Head) -> dict[str, Any] | None:
        if not isinstance(head, LanguageModelHead):
            return None
        value = shortest(1 / head.scale, lambda number: 1 / number == head.scale) if divides else head.scale
        return {"tie_word_embeddings": head.tied, key: value}

    return Architecture(read, write, (NameRule("head.weight", "lm_head.weight"),))


def capped_language_model(tied: bool, default: float | None, key: str = "final_logit_softcapping") -> Architecture:
    """Build a language model architecture with a soft cap of the logits, under ``key``.

    ``default``: cap if the key is missing.
    """

    def read(config: Config) -> Head:
        return LanguageModelHead(tied=config.flag("tie_word_embeddings", tied), softcap=config.optional(key, default))

    def write(head: Head) -> dict[str, Any] | None:
        if not isinstance(head, LanguageModelHead):
            return None
        return {"tie_word_embeddings": head.tied, key: head.softcap}

    return Architecture(read, write, (NameRule("head.weight", "lm_head.weight"),))


def biased(layer: str, bias: str | None = None) -> Architecture:
    """Build an architecture with a language model head with bias, logits = x W^T + b.

    ``layer``: published name of the layer; ``bias``: another published name of b, which is read instead.
    """

    def write(head: Head) -> dict[str, Any] | None:
        return _tie(head) if isinstance(head, LanguageModelHead) and head.bias and head.transform is None else None

    again, names = f"{layer}.bias", {"head.weight": f"{layer}.weight", "head.bias": bias or f"{layer}.bias"}
    rows = tuple(NameRule(*pair) for pair in names.items())
    untied = [NameRule("head.bias", (again, bias), COPIED, lambda spec: not spec.tied)] if bias else []
    return Architecture(
        lambda config: LanguageModelHead(tied=config.flag("tie_word_embeddings", True), bias=True),
        write,
        (*untied, *rows),
        same={again: bias} if bias else {},
    )


def body(
    theirs: str, ignored: Reasons | None = None, kept: Reasons | None = None, same: Mapping[str, str] | None = None
) -> Architecture:
    """Build an architecture without a head, whose outputs are vectors; qkv's model has a tied language-model head.

    ``theirs``: published name of the token table. ``kept``: unused tensors of its files, such as a pooler, that an
    export writes back unchanged. ``same``: second names of its tensors, see ``Architecture``.
    """
    rows = (NameRule("head.weight", theirs),)
    return Architecture(
        lambda config: LanguageModelHead(),
        _no_head,
        rows,
        ignored or {},
        written_back(kept or {}),
        same=same or {},
        bare=True,
    )


def vectors(kept: Reasons | None = None) -> Architecture:
    """Build an architecture without a head, whose outputs are the final vectors.

    For a body without tokens, or with embeddings narrower than the model. ``kept``: unused tensors of its files that an
    export writes back unchanged.
    """
    return Architecture(
        lambda config: VectorsHead(),
        lambda head: {} if isinstance(head, VectorsHead) else None,
        kept=written_back(kept or {}),
        bare=True,
    )


def written_back(reasons: Reasons) -> Reasons:
    """Return the reasons for ignoring tensors, with the note that an export writes the tensors back."""
    return {name: f"{reason}; written back by an export" for name, reason in reasons.items()}


def pooler(prefix: str) -> Reasons:
    """Return the tensors of the pooler (dense layer on the first position) with the reason for ignoring them.

    For architectures that do not use the pooler. ``prefix``: prefix of the body's tensor names.
    """
    return {f"{prefix}pooler.dense.*": "part of the pooler, which this architecture does not use"}


def _no_head(head: Head) -> dict[str, Any] | None:
    return {} if head == LanguageModelHead() else None


def _language_model(tied: bool) -> Reader:
    return lambda config: LanguageModelHead(tied=config.flag("tie_word_embeddings", tied))


def _tie(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, LanguageModelHead):
        return None
    return {"tie_word_embeddings": head.tied}


def transform(config: Config) -> dict[str, Any]:
    """Return the fields of BERT's dense layer before the logits: φ is ``hidden_act``, followed by a norm."""
    return {**gelu_transform(config), "transform": config.word("hidden_act", "gelu", INWARD)}


def gelu_transform(config: Config) -> dict[str, Any]:
    """Return the fields of RoBERTa's dense layer before the logits: φ is GELU, followed by a norm."""
    return {"transform": "gelu", "norm": LayerNorm(eps=config.number("layer_norm_eps", 1e-12))}


def masked(names: Mapping[str, str], fields: Fields = transform, ignored: Reasons | None = None) -> Architecture:
    """Build an architecture with a masked language model head: logits = norm(φ(x W_t + b_t)) W^T + b.

    ``names``: name in qkv -> published name; ``fields``: function from the config to fields of the head. If W is not
    the token table, b is stored as W's bias; its usual name exists too but is not used. If W is the table, both names
    hold b.
    """
    rows = tuple(NameRule(*pair) for pair in names.items())
    both = names["head.weight"].removesuffix("weight") + "bias", names["head.bias"]
    untied = [NameRule("head.bias", both, COPIED, lambda spec: not spec.tied)] if both[0] != both[1] else []
    same = dict([both]) if untied else {}

    def read(config: Config) -> Head:
        return LanguageModelHead(**{"tied": config.flag("tie_word_embeddings", True), "bias": True, **fields(config)})

    return Architecture(read, _masked_keys, (*untied, *rows), ignored or {}, same=same)


def masked_or_causal(masked_name: str, causal_name: str, words: Architecture) -> dict[str, Architecture]:
    """Return two architectures with the same head: of a bidirectional model, and of a causal model."""
    return {
        masked_name: replace(words, suits=lambda spec: not spec.causal),
        causal_name: replace(words, suits=lambda spec: spec.causal),
    }


def _masked_keys(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, LanguageModelHead) or not head.bias or head.transform is None:
        return None
    return {"tie_word_embeddings": head.tied}


def classification(
    hidden: str,
    output: str,
    ignored: Reasons | None = None,
    activation: Activation = "tanh",
    keys: HeadKeys = BERT_KEYS,
) -> Architecture:
    """Build an architecture with the head W dropout(φ(W_h x_0 + b_h)) + b on the first position's vector x_0.

    It is regression if the config has one class or names that problem type, else classification. ``hidden`` and
    ``output``: published names of the two layers; φ: ``activation``.
    """

    def read(config: Config) -> Head:
        width = config.size(keys.width, 768)
        return pooled_head(config, pooling="first", hidden=width, activation=activation, dropout=keys.rate(config))

    def write(head: Head) -> dict[str, Any] | None:
        if not isinstance(head, ClassificationHead | RegressionHead) or head.pooling != "first":
            return None
        return {**problem_keys(head), keys.dropout: head.dropout}

    rows = NameRule("head.hidden.*", f"{hidden}.*"), NameRule("head.output.*", f"{output}.*")
    return Architecture(read, write, rows, ignored or {})


def pooled_head(config: Config, count: int | None = None, **fields: Any) -> Head:
    """Build the head on one vector per text: classification for several classes, regression for one.

    ``count``: number of classes; None: that of the config.   ``fields``: fields of the head. Raises ``UserError`` for
    other problem types.
    """
    count = label_count(config) if count is None else count
    problems = {"regression": count == 1, "single_label_classification": count > 1}
    problem = config.word("problem_type", "regression" if count == 1 else "single_label_classification")
    if problem not in problems:
        raise UserError(
            f"{config.source}: problem_type is {problem!r}, which qkv does not support; {nearest(problem, problems)}"
        )
    if not problems[problem]:
        sentence = "only regression with one label and classification with several labels are supported"
        raise UserError(f"{config.source}: problem_type is {problem!r} with a num_labels of {count}; {sentence}")
    return RegressionHead(**fields) if problem == "regression" else ClassificationHead(num_classes=count, **fields)


def problem_keys(head: ClassificationHead | RegressionHead) -> dict[str, Any]:
    """Return the config keys of the kind of head and the number of classes, the inverse of ``pooled_head``."""
    if isinstance(head, RegressionHead):
        return {**label_keys(1), "problem_type": "regression"}
    return {**label_keys(head.num_classes or 2), "problem_type": "single_label_classification"}


def of_decoder(
    stem: str, tags: str | None = "score", question_answering: bool = True, classes: str = "score"
) -> dict[str, Architecture]:
    """Build the architectures of a decoder family for tasks other than language modelling, by name.

    A name is, for example, ``stem`` + "ForSequenceClassification". Classification or regression: W x on the last
    non-padding token, without bias. Token classification and question answering as for encoders; ``tags``: published
    name of the tagging layer, or None. ``question_answering`` False: no question answering head, or one with other
    names. ``classes``: published name of the classification layer.
    """
    architectures = {
        f"{stem}ForSequenceClassification": Architecture(
            _last, _last_classes, (NameRule("head.output.*", f"{classes}.*"),)
        )
    }
    if tags:
        architectures[f"{stem}ForTokenClassification"] = tagging(tags, keys=HeadKeys(body_dropout="hidden_dropout"))
    if question_answering:
        architectures[f"{stem}ForQuestionAnswering"] = answering("qa_outputs")
    return architectures


def _last(config: Config) -> Head:
    return pooled_head(config, pooling="last", bias=False)


def _last_classes(head: Head) -> dict[str, Any] | None:
    return (
        problem_keys(head) if isinstance(head, ClassificationHead | RegressionHead) and head.pooling == "last" else None
    )


def tagging(output: str, ignored: Reasons | None = None, keys: HeadKeys | None = BERT_KEYS) -> Architecture:
    """Build the architecture for token classification: W dropout(x_i) + b.

    ``output``: published name of the layer; ``keys`` None: no dropout.
    """

    def read(config: Config) -> Head:
        return TokenHead(num_classes=label_count(config), dropout=keys.rate(config) if keys else 0.0)

    def write(head: Head) -> dict[str, Any] | None:
        if not isinstance(head, TokenHead) or head.num_classes is None:
            return None
        return {**label_keys(head.num_classes), **({keys.dropout: head.dropout} if keys else {})}

    return Architecture(read, write, (NameRule("head.output.*", f"{output}.*"),), ignored or {})


def answering(output: str, ignored: Reasons | None = None, dropout: str = "") -> Architecture:
    """Build the architecture for extractive question answering: start and end logits per position.

    ``output``: published name of the layer; ``dropout``: config key of the dropout before it, "" for no dropout.
    """

    def read(config: Config) -> Head:
        return span_head(config, dropout=config.number(dropout)) if dropout else span_head(config)

    def write(head: Head) -> dict[str, Any] | None:
        if not isinstance(head, SpanHead):
            return None
        return {dropout: head.dropout} if dropout else {}

    return Architecture(read, write, (NameRule("head.output.*", f"{output}.*"),), ignored or {})


def span_head(config: Config, **fields: Any) -> Head:
    """Build the head for extractive question answering; ``fields``: fields of the head.

    Raises ``UserError`` if the config does not have two labels.
    """
    count = label_count(config) if config.says("id2label") or config.says("num_labels") else 2
    if count != 2:
        raise UserError(f"{config.source}: num_labels is {count}, but a span head has 2, for start and end")
    return SpanHead(**fields)


def label_count(config: Config) -> int:
    """Return the number of classes in a config: of class names, else ``num_labels``, else 2, as in transformers."""
    named = len(config.table("id2label").values)
    return named or config.size("num_labels", 2)


def label_keys(count: int) -> dict[str, Any]:
    """Return the config keys ``id2label`` and ``label2id`` for ``count`` unnamed classes."""
    names = [f"LABEL_{i}" for i in range(count)]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
