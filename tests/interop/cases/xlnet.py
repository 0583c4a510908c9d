"""XLNet: heads that divide the width, distances limited or not, each head.

Rows of classes are of one length: see the family.
"""

from __future__ import annotations

from typing import Any

import transformers
from tests.interop.cases.case import Case
from transformers import (
    XLNetConfig,
    XLNetForQuestionAnsweringSimple,
    XLNetForSequenceClassification,
    XLNetForTokenClassification,
    XLNetModel,
)


class XLNetLMHeadModel(transformers.XLNetLMHeadModel):
    """The content stream sees all, so it does not write from left to right."""

    @classmethod
    def can_generate(cls) -> bool:
        return False


def config(**changed: Any) -> XLNetConfig:
    sizes = {
        "vocab_size": 61,
        "d_model": 30,
        "n_layer": 3,
        "n_head": 5,
        "d_inner": 44,
        "dropout": 0.2,
        "layer_norm_eps": 1e-3,
    }
    return XLNetConfig(**{**sizes, **changed})


CASES = (
    Case("xlnet-words", XLNetLMHeadModel, config(), lengths=(13, 1, 6)),
    Case("xlnet-words-untied", XLNetLMHeadModel, config(tie_word_embeddings=False, clamp_len=4, ff_activation="relu")),
    Case("xlnet-body", XLNetModel, config(n_head=3, mem_len=None, layer_norm_eps=0.1)),
    Case(
        "xlnet-classes",
        XLNetForSequenceClassification,
        config(num_labels=4, summary_type="first", summary_last_dropout=0.3),
    ),
    Case("xlnet-last", XLNetForSequenceClassification, config(num_labels=3, n_layer=1), lengths=(7, 7, 7)),
    Case("xlnet-number", XLNetForSequenceClassification, config(num_labels=1, summary_type="mean"), lengths=(5, 5)),
    Case("xlnet-tags", XLNetForTokenClassification, config(num_labels=7)),
    Case("xlnet-answers", XLNetForQuestionAnsweringSimple, config(n_head=6, d_inner=7)),
)
