"""Decoders with LayerNorm: names of fairseq and of GPT-2, windows, one head of keys, branches beside each other."""

from __future__ import annotations

from typing import Any

import transformers as hf
from tests.interop.cases.case import Case

IDS = {"bos_token_id": None, "eos_token_id": None}
LARGE = {"vocab_size": 61, "hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 3}
GPT2 = {"vocab_size": 61, "n_embd": 30, "n_layer": 2, "n_head": 3, "n_positions": 90, **IDS}


def sizes(**changed: Any) -> dict[str, Any]:
    return {**LARGE, "max_position_embeddings": 90, **IDS, **changed}


def case(name: str, stem: str, **given: Any) -> Case:
    return Case(name, getattr(hf, f"{stem}ForCausalLM"), getattr(hf, f"{stem}Config")(**given), steps=14)


CASES = (
    case("opt", "OPT", **sizes(ffn_dim=44, pad_token_id=None)),
    case("opt-no-bias", "OPT", **sizes(ffn_dim=17, enable_bias=False, tie_word_embeddings=False, pad_token_id=None)),
    case("biogpt", "BioGpt", **sizes(intermediate_size=44, pad_token_id=None)),
    Case(
        "xglm",
        hf.XGLMForCausalLM,
        hf.XGLMConfig(
            vocab_size=61, d_model=30, num_layers=2, attention_heads=3, ffn_dim=44, max_position_embeddings=90, **IDS
        ),
        steps=14,
    ),
    case("gpt-neo", "GPTNeo", **sizes(attention_types=[[["global", "local"], 1]], window_size=4)),
    case("gpt-bigcode", "GPTBigCode", **GPT2, n_inner=17),
    case("gpt-bigcode-many-heads", "GPTBigCode", **GPT2, multi_query=False),
    case("phi", "Phi", **sizes(intermediate_size=44, num_attention_heads=6, hidden_size=48, num_key_value_heads=2)),
    case("gptj", "GPTJ", **{**GPT2, "n_embd": 36}, rotary_dim=4),
    case("codegen", "CodeGen", **{**GPT2, "n_embd": 32, "n_head": 4}, rotary_dim=4, pad_token_id=0),
)
