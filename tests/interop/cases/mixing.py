"""Encoders of BERT's structure that mix positions in other ways: Nyströmformer, YOSO, FNet.

Their own code does not mask padding everywhere, so all rows of a batch have one length.
"""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import (
    FNetConfig,
    FNetForMaskedLM,
    FNetForQuestionAnswering,
    FNetForSequenceClassification,
    FNetModel,
    NystromformerConfig,
    NystromformerForMaskedLM,
    NystromformerForSequenceClassification,
    NystromformerModel,
    YosoConfig,
    YosoForMaskedLM,
    YosoForSequenceClassification,
    YosoForTokenClassification,
)

SIZES = {
    "vocab_size": 61,
    "hidden_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "intermediate_size": 44,
    "max_position_embeddings": 23,
}
LENGTHS = (9, 9, 9)


def nystrom(**changed: Any) -> NystromformerConfig:
    return NystromformerConfig(**{**SIZES, "conv_kernel_size": 5, **changed})


def yoso(**changed: Any) -> YosoConfig:
    return YosoConfig(**{**SIZES, "hash_code_len": 4, **changed})


def fnet(**changed: Any) -> FNetConfig:
    sizes = {name: size for name, size in SIZES.items() if name != "num_attention_heads"}
    return FNetConfig(**{**sizes, **changed})


CASES = (
    Case("nystromformer-masked", NystromformerForMaskedLM, nystrom(), LENGTHS),
    Case("nystromformer-body", NystromformerModel, nystrom(conv_kernel_size=31, type_vocab_size=1), LENGTHS),
    Case("nystromformer-classes", NystromformerForSequenceClassification, nystrom(num_labels=3), LENGTHS),
    Case("yoso-masked", YosoForMaskedLM, yoso(), LENGTHS),
    Case("yoso-masked-with-convolution", YosoForMaskedLM, yoso(conv_window=7, hash_code_len=9), LENGTHS),
    Case("yoso-number", YosoForSequenceClassification, yoso(num_labels=1, hidden_act="relu"), LENGTHS),
    Case("yoso-tags", YosoForTokenClassification, yoso(num_labels=4, type_vocab_size=2), LENGTHS),
    Case("fnet-masked", FNetForMaskedLM, fnet(), LENGTHS),
    Case("fnet-masked-odd", FNetForMaskedLM, fnet(hidden_size=31, hidden_act="relu"), (8, 8)),
    Case("fnet-body", FNetModel, fnet(type_vocab_size=1), (1, 1)),
    Case("fnet-classes", FNetForSequenceClassification, fnet(num_labels=3), LENGTHS),
    Case("fnet-answers", FNetForQuestionAnswering, fnet(), LENGTHS),
)
