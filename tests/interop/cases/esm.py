"""ESM: positions of each kind, mask tokens that are dropped out, each kind of head."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import EsmcConfig, EsmcForMaskedLM, EsmConfig, EsmForMaskedLM, EsmForSequenceClassification


def config(**changed: Any) -> EsmConfig:
    sizes = {"vocab_size": 33, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    more = {"intermediate_size": 44, "max_position_embeddings": 23, "pad_token_id": 1, "mask_token_id": 5}
    return EsmConfig(**{**sizes, **more, **changed})


ROTARY = {"position_embedding_type": "rotary", "token_dropout": True}
ESMC = {"vocab_size": 33, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 40}
CASES = (
    Case("esmc-masked", EsmcForMaskedLM, EsmcConfig(**ESMC)),
    Case("esm-masked", EsmForMaskedLM, config(emb_layer_norm_before=True, tie_word_embeddings=False)),
    Case("esm-masked-rotary", EsmForMaskedLM, config(**ROTARY, rope_theta=500.0), computed=("inv_freq",)),
    Case("esm-classes-rotary", EsmForSequenceClassification, config(**ROTARY, num_labels=3), computed=("inv_freq",)),
)
