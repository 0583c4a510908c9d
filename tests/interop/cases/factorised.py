"""Encoders with a factorised embedding: ALBERT of one shared layer and of two, ELECTRA with a map and without one,
RemBERT with an output matrix of a third width.
"""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertModel,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    ElectraForSequenceClassification,
    ElectraForTokenClassification,
    ElectraModel,
    RemBertConfig,
    RemBertForCausalLM,
    RemBertForMaskedLM,
    RemBertForSequenceClassification,
)
from transformers.modeling_outputs import MaskedLMOutput

SIZES = {
    "vocab_size": 61,
    "hidden_size": 30,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 44,
    "max_position_embeddings": 23,
}


class Discriminator(ElectraForPreTraining):
    """With an axis for the one class of each token."""

    def forward(self, *args: Any, **kwargs: Any) -> MaskedLMOutput:
        return MaskedLMOutput(logits=super().forward(*args, **kwargs).logits[..., None])


Discriminator.__name__ = "ElectraForPreTraining"


def albert(**changed: Any) -> AlbertConfig:
    return AlbertConfig(**{**SIZES, "embedding_size": 14, **changed})


def electra(**changed: Any) -> ElectraConfig:
    return ElectraConfig(**{**SIZES, "embedding_size": 14, **changed})


def rembert(**changed: Any) -> RemBertConfig:
    return RemBertConfig(**{**SIZES, "input_embedding_size": 14, "output_embedding_size": 19, **changed})


CASES = (
    Case("albert-masked", AlbertForMaskedLM, albert()),
    Case("albert-masked-two-layers", AlbertForMaskedLM, albert(inner_group_num=2, hidden_act="relu")),
    Case("albert-masked-equal-widths", AlbertForMaskedLM, albert(embedding_size=30, num_hidden_layers=1)),
    Case("albert-body", AlbertModel, albert()),
    Case("albert-classes", AlbertForSequenceClassification, albert(num_labels=3, classifier_dropout_prob=0.3)),
    Case("albert-answers", AlbertForQuestionAnswering, albert(type_vocab_size=3)),
    Case("electra-masked", ElectraForMaskedLM, electra(hidden_act="relu")),
    Case("electra-masked-untied", ElectraForMaskedLM, electra(tie_word_embeddings=False)),
    Case("electra-masked-equal-widths", ElectraForMaskedLM, electra(embedding_size=30)),
    Case("electra-body", ElectraModel, electra()),
    Case("electra-replaced", Discriminator, electra(hidden_act="silu")),
    Case("electra-classes", ElectraForSequenceClassification, electra(num_labels=3, classifier_dropout=0.3)),
    Case("electra-tags", ElectraForTokenClassification, electra(num_labels=4)),
    Case("rembert-masked", RemBertForMaskedLM, rembert()),
    Case("rembert-causal", RemBertForCausalLM, rembert(is_decoder=True), steps=8),
    Case("rembert-number", RemBertForSequenceClassification, rembert(num_labels=1)),
)
