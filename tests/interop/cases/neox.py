"""GPT-NeoX: odd head counts, each share of a head that is turned, branches side by side or in turn, each way to tie."""

from __future__ import annotations

from typing import Any

from tests.interop.cases.case import Case
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GPTNeoXForSequenceClassification,
    GPTNeoXForTokenClassification,
    GPTNeoXJapaneseConfig,
    GPTNeoXJapaneseForCausalLM,
)


def config(**changed: Any) -> GPTNeoXConfig:
    sizes = {
        "vocab_size": 61,
        "hidden_size": 30,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 44,
    }
    return GPTNeoXConfig(
        **{**sizes, "max_position_embeddings": 90, "bos_token_id": None, "eos_token_id": None, **changed}
    )


def case(name: str, **changed: Any) -> Case:
    return Case(name, GPTNeoXForCausalLM, config(**changed), renamed={"embed_out.weight": "lm_head.weight"})


CASES = (
    Case(
        "neox-japanese",
        GPTNeoXJapaneseForCausalLM,
        GPTNeoXJapaneseConfig(
            vocab_size=61,
            hidden_size=30,
            num_hidden_layers=3,
            num_attention_heads=3,
            intermediate_multiple_size=2,
            rotary_emb_base=700,
            rotary_pct=0.4,
            pad_token_id=0,
        ),
        steps=14,
    ),
    case("neox", rotary_pct=0.4),
    case(
        "neox-in-turn",
        use_parallel_residual=False,
        rotary_pct=1.0,
        rotary_emb_base=500,
        hidden_act="gelu_new",
        layer_norm_eps=1e-3,
    ),
    case(
        "neox-no-bias-tied",
        attention_bias=False,
        tie_word_embeddings=True,
        hidden_size=70,
        num_attention_heads=5,
        rotary_pct=0.3,
    ),
    case(
        "neox-scaled",
        rotary_pct=0.6,
        rope_scaling={"rope_type": "linear", "factor": 2.5},
        num_hidden_layers=3,
        hidden_act="relu",
    ),
    Case("neox-classes", GPTNeoXForSequenceClassification, config(num_labels=3, pad_token_id=1)),
    Case("neox-tags", GPTNeoXForTokenClassification, config(num_labels=3, classifier_dropout=0.4)),
)
