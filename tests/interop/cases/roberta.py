"""RoBERTa: other rows for padding than 1, each head; XLM-RoBERTa, CamemBERT and data2vec for texts."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tests.interop.cases.case import Case
from transformers import (
    CamembertConfig,
    CamembertForMaskedLM,
    CamembertForTokenClassification,
    Data2VecTextConfig,
    Data2VecTextForMaskedLM,
    Data2VecTextForSequenceClassification,
    RobertaConfig,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
    XLMRobertaForSequenceClassification,
)

SIZES = {"vocab_size": 61, "hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 44}


class RobertaForMaskedLM(transformers.RobertaForMaskedLM):
    """With the unread bias equal to the one that is read, where the head is not tied."""

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        super().tie_weights(*args, **kwargs)
        with torch.no_grad():
            self.lm_head.bias.copy_(self.lm_head.decoder.bias)


class RobertaForCausalLM(transformers.RobertaForCausalLM):
    """With positions counted from the ids: those given as an argument would lack the reserved rows."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("position_ids", None)
        return super().forward(*args, **kwargs)


def config(**changed: Any) -> RobertaConfig:
    return RobertaConfig(
        **{**SIZES, "max_position_embeddings": 23, "type_vocab_size": 1, "layer_norm_eps": 1e-5, **changed}
    )


def multilingual(**changed: Any) -> XLMRobertaConfig:
    return XLMRobertaConfig(**{**SIZES, "max_position_embeddings": 23, "type_vocab_size": 1, **changed})


CASES = (
    Case("roberta-masked", RobertaForMaskedLM, config(hidden_act="relu")),
    Case(
        "roberta-masked-untied",
        RobertaForMaskedLM,
        config(tie_word_embeddings=False, pad_token_id=0, layer_norm_eps=1e-2),
    ),
    Case("roberta-causal", RobertaForCausalLM, config(is_decoder=True), steps=9, cached=False),
    Case("roberta-body", transformers.RobertaModel, config(pad_token_id=3, type_vocab_size=2, num_attention_heads=3)),
    Case("roberta-classes", RobertaForSequenceClassification, config(num_labels=5)),
    Case("roberta-number", RobertaForSequenceClassification, config(num_labels=1, classifier_dropout=0.4)),
    Case("roberta-tags", RobertaForTokenClassification, config(num_labels=3, num_hidden_layers=3)),
    Case("roberta-answers", RobertaForQuestionAnswering, config(num_attention_heads=6)),
    Case(
        "xlm-roberta-masked",
        XLMRobertaForMaskedLM,
        multilingual(),
        renamed={"roberta.embeddings.word_embeddings.weight": "lm_head.decoder.weight"},
    ),
    Case("xlm-roberta-classes", XLMRobertaForSequenceClassification, multilingual(num_labels=4, pad_token_id=2)),
    Case(
        "camembert-masked",
        CamembertForMaskedLM,
        CamembertConfig(**SIZES, max_position_embeddings=23),
        renamed={"roberta.embeddings.word_embeddings.weight": "lm_head.decoder.weight"},
    ),
    Case("camembert-tags", CamembertForTokenClassification, CamembertConfig(**SIZES, max_position_embeddings=23)),
    Case("data2vec-masked", Data2VecTextForMaskedLM, Data2VecTextConfig(**SIZES, max_position_embeddings=23)),
    Case(
        "data2vec-classes",
        Data2VecTextForSequenceClassification,
        Data2VecTextConfig(**SIZES, max_position_embeddings=23, pad_token_id=0),
    ),
)
