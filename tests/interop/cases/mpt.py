"""MPT: head counts that are no power of two, a scale of its own, each way to tie."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import MptConfig, MptForCausalLM, MptForSequenceClassification, MptForTokenClassification


def config(**changed: Any) -> MptConfig:
    sizes = {"vocab_size": 61, "d_model": 30, "n_layers": 2, "n_heads": 3, "max_seq_len": 90}
    return MptConfig(**{**sizes, "bos_token_id": None, "eos_token_id": None, **changed})


CASES = (
    Case("mpt", MptForCausalLM, config()),
    Case(
        "mpt-six-heads",
        MptForCausalLM,
        config(n_heads=6, d_model=42, layer_norm_epsilon=1e-3, attn_config={"softmax_scale": 0.23}),
    ),
    Case("mpt-untied", MptForCausalLM, config(n_heads=5, d_model=40, n_layers=3, tie_word_embeddings=False)),
    Case("mpt-classes", MptForSequenceClassification, config(num_labels=3, pad_token_id=1)),
    Case("mpt-tags", MptForTokenClassification, config(num_labels=3)),
)
