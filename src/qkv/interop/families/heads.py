"""Heads that many families have, as functions of a config and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qkv.interop.config import Config
from qkv.interop.families.activations import INWARD
from qkv.interop.family import Architecture, Reasons, Row
from qkv.interop.ways import COPIED
from qkv.spec.errors import UserError, nearest
from qkv.spec.heads import ClassificationHead, Head, LanguageModelHead, RegressionHead, SpanHead, TokenHead
from qkv.spec.parts import Activation, LayerNorm

HEAD_KEYS: Reasons = dict.fromkeys(("tie_word_embeddings", "classifier_dropout"), "of a head that this architecture does not have")
"""Keys that configs have whatever their head is."""
Reader = Callable[[Config], Head]
Writer = Callable[[Head], dict[str, Any] | None]


def language_model(tied: bool, ours: str = "head.weight", theirs: str = "lm_head.weight") -> Architecture:
    """logits = x W^T. ``tied``: what a config without ``tie_word_embeddings`` means."""
    return Architecture(_language_model(tied), _tie, (Row(ours, theirs),))


def body(theirs: str, ignored: Reasons | None = None, kept: Reasons | None = None) -> Architecture:
    """A body without a head, which here has the tied one: vectors are its answer, not logits. ``theirs``: the name of the token vectors.

    ``kept``: tensors of its files that nothing here reads, such as a pooler, and that are saved again as they were.
    """
    rows, again = (Row("head.weight", theirs),), "; written again where the model is saved"
    reasons = {name: f"{reason}{again}" for name, reason in (kept or {}).items()}
    return Architecture(lambda config: LanguageModelHead(), _no_head, rows, ignored or {}, reasons, bare=True)


def pooler(prefix: str) -> Reasons:
    """The layer on the first position's vector that encoders have beside them, for architectures that do not read it."""
    return {f"{prefix}pooler.dense.*": "of the pooled output, which this architecture does not read"}


def _no_head(head: Head) -> dict[str, Any] | None:
    return {} if head == LanguageModelHead() else None


def _language_model(tied: bool) -> Reader:
    return lambda config: LanguageModelHead(tied=config.flag("tie_word_embeddings", tied))


def _tie(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, LanguageModelHead):
        return None
    return {"tie_word_embeddings": head.tied}


def masked(names: Mapping[str, str], activation: Activation | None = None, ignored: Reasons | None = None) -> Architecture:
    """logits = norm(φ(x W_t + b_t)) W^T + b, the answer at a hidden position. ``names``: ours and a file's.

    φ is ``activation``, or where there is none that of the body, ``hidden_act``. Where W is not the token table, b has the name of W's
    bias, and the one that it has otherwise is there too, unread.
    """
    rows = tuple(Row(*pair) for pair in names.items())
    bias, weight = names["head.bias"], names["head.weight"]
    untied = Row("head.bias", (weight.removesuffix("weight") + "bias", bias), COPIED, lambda spec: not spec.tied)

    def read(config: Config) -> Head:
        tied = config.flag("tie_word_embeddings", True)
        norm = LayerNorm(eps=config.number("layer_norm_eps", 1e-12))
        return LanguageModelHead(tied=tied, bias=True, transform=activation or config.word("hidden_act", "gelu", INWARD), norm=norm)

    def write(head: Head) -> dict[str, Any] | None:
        if not isinstance(head, LanguageModelHead) or not head.bias or head.transform is None:
            return None
        return {"tie_word_embeddings": head.tied}

    return Architecture(read, write, (untied, *rows), ignored or {})


def classification(hidden: str, output: str, ignored: Reasons | None = None) -> Architecture:
    """W dropout(tanh(W_h x_0 + b_h)) + b of the first position: classes, or one number where there is one class or the config says so.

    ``hidden`` and ``output`` name the two layers in a file.
    """
    return Architecture(
        _classification, _classes, (Row("head.hidden.*", f"{hidden}.*"), Row("head.output.*", f"{output}.*")), ignored or {}
    )


def _classification(config: Config) -> Head:
    return pooled_head(config, pooling="first", hidden=config.size("hidden_size", 768), dropout=_dropout(config))


def _classes(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, ClassificationHead | RegressionHead) or head.pooling != "first":
        return None
    return {**problem_keys(head), "classifier_dropout": head.dropout}


def pooled_head(config: Config, **fields: Any) -> Head:
    """Classes where a config has several, one number where it has one; ``fields`` of that head. Raises ``UserError`` for other problems."""
    count = label_count(config)
    known = {"regression": count == 1, "single_label_classification": count > 1}
    problem = config.word("problem_type", "regression" if count == 1 else "single_label_classification")
    if problem not in known:
        raise UserError(f"{config.source}: problem_type is {problem!r}, which qkv does not know; {nearest(problem, known)}")
    if not known[problem]:
        sentence = "a regression of one number and a classification of several labels are known"
        raise UserError(f"{config.source}: problem_type is {problem!r} with a num_labels of {count}; {sentence}")
    return RegressionHead(**fields) if problem == "regression" else ClassificationHead(num_classes=count, **fields)


def problem_keys(head: ClassificationHead | RegressionHead) -> dict[str, Any]:
    """The keys of which ``pooled_head`` makes a head of this kind and number of classes."""
    if isinstance(head, RegressionHead):
        return {**label_keys(1), "problem_type": "regression"}
    return {**label_keys(head.num_classes or 2), "problem_type": "single_label_classification"}


def of_decoder(stem: str, tags: str | None = "score", answers: bool = True) -> dict[str, Architecture]:
    """The heads that a family of decoders has for other tasks than the next word, by their names, which begin with ``stem``.

    Classes or a number: W x of the last real token, without a bias. Tags and answers as of encoders; ``tags`` names the layer of the first
    in a file, None where the family has none. Not ``answers`` where it has none, or names all other tensors differently there.
    """
    found = {f"{stem}ForSequenceClassification": Architecture(_last, _last_classes, (Row("head.output.*", "score.*"),))}
    if tags:
        found[f"{stem}ForTokenClassification"] = tagging(tags, body_dropout="hidden_dropout")
    if answers:
        found[f"{stem}ForQuestionAnswering"] = answering("qa_outputs")
    return found


def _last(config: Config) -> Head:
    return pooled_head(config, pooling="last", bias=False)


def _last_classes(head: Head) -> dict[str, Any] | None:
    return problem_keys(head) if isinstance(head, ClassificationHead | RegressionHead) and head.pooling == "last" else None


def tagging(output: str, ignored: Reasons | None = None, body_dropout: str = "hidden_dropout_prob") -> Architecture:
    """W dropout(x_i) + b at every position. ``output`` names the layer in a file, ``body_dropout`` the key of the body's dropout."""

    def read(config: Config) -> Head:
        return TokenHead(num_classes=label_count(config), dropout=_dropout(config, body_dropout))

    return Architecture(read, _tags, (Row("head.output.*", f"{output}.*"),), ignored or {})


def _tags(head: Head) -> dict[str, Any] | None:
    if not isinstance(head, TokenHead) or head.num_classes is None:
        return None
    return {**label_keys(head.num_classes), "classifier_dropout": head.dropout}


def answering(output: str, ignored: Reasons | None = None) -> Architecture:
    """Two logits a position: that an answer begins, and that it ends, there. ``output`` names the layer in a file."""
    return Architecture(
        _answering, lambda head: {} if isinstance(head, SpanHead) else None, (Row("head.output.*", f"{output}.*"),), ignored or {}
    )


def _answering(config: Config) -> Head:
    return span_head(config)


def span_head(config: Config, **fields: Any) -> Head:
    """The two logits of a config whose labels, if it has any, are two; ``fields`` of that head. Raises ``UserError`` for others."""
    count = label_count(config) if config.says("id2label") or config.says("num_labels") else 2
    if count != 2:
        raise UserError(f"{config.source}: num_labels is {count}, but a span has 2 logits, where it begins and where it ends")
    return SpanHead(**fields)


def label_count(config: Config) -> int:
    """How many classes there are: those that have names, else what is said of them, else two, as everywhere in that library."""
    named = len(config.table("id2label").values)
    return named or config.size("num_labels", 2)


def label_keys(count: int) -> dict[str, Any]:
    """So many classes without names of their own."""
    names = [f"LABEL_{i}" for i in range(count)]
    return {"id2label": {str(i): name for i, name in enumerate(names)}, "label2id": {name: i for i, name in enumerate(names)}}


def _dropout(config: Config, body: str = "hidden_dropout_prob") -> float:
    """Before the last layer; that of the body where nothing is said."""
    return config.number("classifier_dropout", config.number(body, 0.1))
