"""Small models of the families that llama.cpp has, by the transformers library, with the same weights in every run."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 70
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_OTHER = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
_LINEAR = {"rope_type": "linear", "rope_theta": 3000.0, "factor": 2.5}
_SCALAR = {"query_pre_attn_scalar": 24, "head_dim": 24, "sliding_window": 8}

CONFIGS: dict[str, tuple[type[Any], Any]] = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(**_OTHER, n_embd=64, n_layer=2, n_head=4, n_positions=64)),
    "llama": (LlamaForCausalLM, LlamaConfig(**_SIZES, head_dim=24, rms_norm_eps=1e-5)),
    "llama3": (
        LlamaForCausalLM,
        LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rope_parameters=_LLAMA3),
    ),
    "llama-yarn": (LlamaForCausalLM, LlamaConfig(**_SIZES, rope_parameters=_YARN)),
    "mistral": (MistralForCausalLM, MistralConfig(**_SIZES, sliding_window=None, rope_parameters=_LINEAR)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**_SIZES, tie_word_embeddings=True)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**_SIZES, head_dim=24)),
    "gemma": (GemmaForCausalLM, GemmaConfig(**_SIZES, head_dim=24)),
    "gemma2": (Gemma2ForCausalLM, Gemma2Config(**{**_SIZES, "num_hidden_layers": 3}, **_SCALAR)),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(**{**_SIZES, "num_hidden_layers": 7}, **_SCALAR)),
    "neox": (
        GPTNeoXForCausalLM,
        GPTNeoXConfig(
            **_OTHER,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
            max_position_embeddings=64,
            rotary_pct=0.5,
        ),
    ),
    "bloom": (BloomForCausalLM, BloomConfig(**_OTHER, hidden_size=64, n_layer=2, n_head=4, seq_length=64)),
}


def model_of(name: str) -> Any:
    """Model with normally distributed weights, also of norms and biases, by numpy's frozen generator."""
    kind, config = CONFIGS[name]
    model, drawn = kind(config).eval(), np.random.RandomState(sum(map(ord, name)))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            middle = 1.0 if re.search(r"(norm|ln_\w+)\.weight$", key) else 0.0
            parameter.copy_(torch.from_numpy(middle + 0.12 * drawn.standard_normal(parameter.shape)))
    model.tie_weights()
    return model
