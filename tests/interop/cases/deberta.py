"""DeBERTa, v2 and v3: one term of the scores and both, buckets and none, shared projections and own ones, each head."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tests.interop.cases.case import Case
from transformers import (
    DebertaConfig,
    DebertaForQuestionAnswering,
    DebertaForSequenceClassification,
    DebertaForTokenClassification,
    DebertaModel,
    DebertaV2Config,
    DebertaV2ForQuestionAnswering,
    DebertaV2ForSequenceClassification,
    DebertaV2ForTokenClassification,
    DebertaV2Model,
)


class DebertaV2ForMaskedLM(transformers.DebertaV2ForMaskedLM):
    """With the unread bias equal to the one that is read, where the head is not tied."""

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        super().tie_weights(*args, **kwargs)
        with torch.no_grad():
            self.cls.predictions.bias.copy_(self.cls.predictions.decoder.bias)


class DebertaForMaskedLM(transformers.DebertaForMaskedLM):
    """With the unread bias equal to the one that is read, where the head is not tied."""

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        super().tie_weights(*args, **kwargs)
        with torch.no_grad():
            self.cls.predictions.bias.copy_(self.cls.predictions.decoder.bias)


SIZES = {"vocab_size": 61, "hidden_size": 30, "num_hidden_layers": 3, "num_attention_heads": 5, "intermediate_size": 44}
V3 = {
    "relative_attention": True,
    "position_buckets": 4,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "max_relative_positions": -1,
    "position_biased_input": False,
}


def config(**changed: Any) -> DebertaV2Config:
    """The options of the third version, in small."""
    return DebertaV2Config(**{**SIZES, "max_position_embeddings": 23, "hidden_dropout_prob": 0.2, **V3, **changed})


def first(**changed: Any) -> DebertaConfig:
    """Of the first version, some distances beyond the furthest."""
    distances = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 4}
    return DebertaConfig(
        **{**SIZES, **distances, "max_position_embeddings": 23, "position_biased_input": False, **changed}
    )


LABELS = {0: "anger", 1: "joy", 2: "neither"}

CASES = (
    Case("deberta-v3-masked", DebertaV2ForMaskedLM, config()),
    Case(
        "deberta-v2-masked-untied",
        DebertaV2ForMaskedLM,
        config(tie_word_embeddings=False, hidden_act="relu", layer_norm_eps=1e-2),
    ),
    Case("deberta-v2-body", DebertaV2Model, config(share_att_key=False, type_vocab_size=2, position_biased_input=True)),
    Case(
        "deberta-v2-content-to-position",
        DebertaV2Model,
        config(pos_att_type=["c2p"], position_buckets=-1, max_relative_positions=4),
    ),
    Case(
        "deberta-v2-position-to-content",
        DebertaV2Model,
        config(
            pos_att_type=["p2c"], share_att_key=False, norm_rel_ebd="none", position_buckets=7, max_relative_positions=6
        ),
    ),
    Case(
        "deberta-v2-plain",
        DebertaV2ForTokenClassification,
        DebertaV2Config(
            vocab_size=61, hidden_size=30, num_hidden_layers=2, num_attention_heads=5, intermediate_size=7, num_labels=7
        ),
    ),
    Case(
        "deberta-v2-classes",
        DebertaV2ForSequenceClassification,
        config(id2label=LABELS, cls_dropout=0.3, pooler_hidden_act="tanh"),
    ),
    Case("deberta-v2-number", DebertaV2ForSequenceClassification, config(num_labels=1, type_vocab_size=3)),
    Case("deberta-v2-answers", DebertaV2ForQuestionAnswering, config(num_hidden_layers=1, num_attention_heads=6)),
    Case("deberta-masked", DebertaForMaskedLM, first()),
    Case(
        "deberta-masked-untied",
        DebertaForMaskedLM,
        first(tie_word_embeddings=False, position_biased_input=True, layer_norm_eps=1e-2),
    ),
    Case(
        "deberta-body",
        DebertaModel,
        first(pos_att_type=["c2p"], type_vocab_size=2, num_attention_heads=3, hidden_act="relu"),
    ),
    Case("deberta-classes", DebertaForSequenceClassification, first(id2label=LABELS, pos_att_type=["p2c"])),
    Case("deberta-tags", DebertaForTokenClassification, first(num_labels=7, max_relative_positions=-1)),
    Case("deberta-answers", DebertaForQuestionAnswering, first(num_hidden_layers=1, num_attention_heads=6)),
)
