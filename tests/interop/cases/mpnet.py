"""MPNet: texts longer than the distances that have a bucket of their own, each head."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tests.interop.cases.case import Case
from transformers import (
    MPNetConfig,
    MPNetForQuestionAnswering,
    MPNetForSequenceClassification,
    MPNetForTokenClassification,
)

LENGTHS = (31, 1, 12)


class MPNetForMaskedLM(transformers.MPNetForMaskedLM):
    """With the unread bias equal to the one that is read, where the head is not tied."""

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        super().tie_weights(*args, **kwargs)
        with torch.no_grad():
            self.lm_head.bias.copy_(self.lm_head.decoder.bias)


def config(**changed: Any) -> MPNetConfig:
    sizes = {
        "vocab_size": 61,
        "hidden_size": 30,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "intermediate_size": 44,
    }
    return MPNetConfig(**{**sizes, "max_position_embeddings": 37, "hidden_dropout_prob": 0.2, **changed})


CASES = (
    Case("mpnet-masked", MPNetForMaskedLM, config(), LENGTHS),
    Case(
        "mpnet-masked-untied",
        MPNetForMaskedLM,
        config(tie_word_embeddings=False, layer_norm_eps=1e-2, hidden_act="relu"),
        LENGTHS,
    ),
    Case("mpnet-body", transformers.MPNetModel, config(num_attention_heads=3), LENGTHS),
    Case("mpnet-classes", MPNetForSequenceClassification, config(num_labels=3), LENGTHS),
    Case("mpnet-tags", MPNetForTokenClassification, config(num_labels=4, num_hidden_layers=1), LENGTHS),
    Case("mpnet-answers", MPNetForQuestionAnswering, config(), LENGTHS),
)
