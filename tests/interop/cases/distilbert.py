"""DistilBERT: five heads, each kind of answer, another activation."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import (
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertForQuestionAnswering,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
    DistilBertModel,
)


def config(**changed: Any) -> DistilBertConfig:
    sizes = {"vocab_size": 61, "dim": 30, "n_layers": 2, "n_heads": 5, "hidden_dim": 44, "max_position_embeddings": 23}
    return DistilBertConfig(**{**sizes, **changed})


CASES = (
    Case("distilbert-masked", DistilBertForMaskedLM, config()),
    Case("distilbert-masked-untied", DistilBertForMaskedLM, config(tie_word_embeddings=False, activation="relu")),
    Case("distilbert-body", DistilBertModel, config(sinusoidal_pos_embds=True, n_heads=3)),
    Case("distilbert-classes", DistilBertForSequenceClassification, config(num_labels=3, seq_classif_dropout=0.4)),
    Case("distilbert-number", DistilBertForSequenceClassification, config(num_labels=1)),
    Case("distilbert-tags", DistilBertForTokenClassification, config(num_labels=7, dropout=0.3)),
    Case("distilbert-answers", DistilBertForQuestionAnswering, config(qa_dropout=0.2)),
)
