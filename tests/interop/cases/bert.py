"""BERT: five heads, feed-forward widths that are no multiple, one token type and three, each head; ERNIE."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tests.interop.cases.case import Case
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    ErnieConfig,
    ErnieForMaskedLM,
    ErnieForSequenceClassification,
)


class BertModel(transformers.BertModel):
    """The body without the layer on the pooled vector."""

    def __init__(self, config: BertConfig):
        super().__init__(config, add_pooling_layer=False)


class BertForMaskedLM(transformers.BertForMaskedLM):
    """With the unread bias equal to the one that is read, where the head is not tied."""

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        super().tie_weights(*args, **kwargs)
        with torch.no_grad():
            self.cls.predictions.bias.copy_(self.cls.predictions.decoder.bias)


def config(**changed: Any) -> BertConfig:
    sizes = {
        "vocab_size": 61,
        "hidden_size": 30,
        "num_hidden_layers": 2,
        "num_attention_heads": 5,
        "intermediate_size": 44,
    }
    return BertConfig(**{**sizes, "max_position_embeddings": 23, "hidden_dropout_prob": 0.2, **changed})


def ernie(**changed: Any) -> ErnieConfig:
    return ErnieConfig(**{**config().to_dict(), "model_type": "ernie", "architectures": None, **changed})


LABELS = {0: "anger", 1: "joy", 2: "neither"}

CASES = (
    Case("bert-masked", BertForMaskedLM, config()),
    Case(
        "bert-masked-untied",
        BertForMaskedLM,
        config(tie_word_embeddings=False, hidden_act="relu", layer_norm_eps=1e-3, num_hidden_layers=3),
    ),
    Case("bert-body", BertModel, config(type_vocab_size=3, hidden_act="gelu_new", num_attention_heads=3)),
    Case("bert-body-and-pooler", transformers.BertModel, config(num_attention_heads=2)),
    Case("bert-classes", BertForSequenceClassification, config(id2label=LABELS, classifier_dropout=0.3)),
    Case("bert-two-classes", BertForSequenceClassification, config(type_vocab_size=1, num_attention_heads=1)),
    Case(
        "bert-number",
        BertForSequenceClassification,
        config(num_labels=1, problem_type="regression", layer_norm_eps=0.5),
    ),
    Case("bert-tags", BertForTokenClassification, config(num_labels=7, intermediate_size=7)),
    Case("bert-answers", BertForQuestionAnswering, config(num_hidden_layers=1, num_attention_heads=6)),
    Case("bert-causal", BertLMHeadModel, config(is_decoder=True, type_vocab_size=1), steps=9),
    Case("ernie-masked", ErnieForMaskedLM, ernie()),
    Case("ernie-classes", ErnieForSequenceClassification, ernie(num_labels=3, type_vocab_size=4)),
)
