"""Longformer: windows smaller and larger than the rows, one for all layers or each its own, each head.

Rows for padding are also others than 1.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tests.interop.cases.case import Case
from torch import Tensor
from transformers import LongformerConfig, LongformerForSequenceClassification, LongformerForTokenClassification


class LongformerForMaskedLM(transformers.LongformerForMaskedLM):
    """With the unread bias equal to the one that is read, where the head is not tied."""

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        super().tie_weights(*args, **kwargs)
        with torch.no_grad():
            self.lm_head.bias.copy_(self.lm_head.decoder.bias)


class LongformerForQuestionAnswering(transformers.LongformerForQuestionAnswering):
    """Without a question, which it otherwise looks for among the tokens."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return super().forward(input_ids, attention_mask, global_attention_mask=torch.zeros_like(input_ids))


def config(**changed: Any) -> LongformerConfig:
    sizes = {
        "vocab_size": 61,
        "hidden_size": 30,
        "num_hidden_layers": 3,
        "num_attention_heads": 5,
        "intermediate_size": 44,
    }
    return LongformerConfig(
        **{**sizes, "max_position_embeddings": 43, "type_vocab_size": 1, "attention_window": 4, **changed}
    )


CASES = (
    Case("longformer-masked", LongformerForMaskedLM, config(), lengths=(19, 1, 12)),
    Case(
        "longformer-masked-untied",
        LongformerForMaskedLM,
        config(tie_word_embeddings=False, attention_window=[4, 6, 12]),
    ),
    Case(
        "longformer-body",
        transformers.LongformerModel,
        config(pad_token_id=3, type_vocab_size=2, num_attention_heads=3, hidden_act="relu"),
    ),
    Case(
        "longformer-classes",
        LongformerForSequenceClassification,
        config(num_labels=4, attention_window=[4, 6, 12]),
        lengths=(17, 2, 9),
    ),
    Case("longformer-number", LongformerForSequenceClassification, config(num_labels=1, num_hidden_layers=1)),
    Case(
        "longformer-tags", LongformerForTokenClassification, config(num_labels=3, layer_norm_eps=1e-3, pad_token_id=0)
    ),
    Case("longformer-answers", LongformerForQuestionAnswering, config(attention_window=6)),
)
