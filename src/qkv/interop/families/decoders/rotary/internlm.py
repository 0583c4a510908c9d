"""InternLM 3 (Shanghai AI Laboratory 2025) and IQuest-Coder (2026): Llama with other model types and defaults."""

from __future__ import annotations

from dataclasses import replace

from qkv.interop.families.common.heads import language_model
from qkv.interop.families.decoders.llama import LLAMA
from qkv.interop.registry import register

_ARCHITECTURES = {"LlamaForCausalLM": language_model(tied=False)}

INTERNLM3 = replace(
    LLAMA,
    name="InternLM3",
    model_types=("internlm3",),
    architectures=_ARCHITECTURES,
    synonyms={"qkv_bias": "attention_bias", "bias": "mlp_bias"},
    defaults={
        "vocab_size": 128512,
        "hidden_size": 4096,
        "intermediate_size": 10240,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
    },
    base="Llama",
    gguf=None,
)
IQUEST = replace(
    LLAMA,
    name="IQuest-Coder",
    model_types=("iquestcoder",),
    architectures=_ARCHITECTURES,
    defaults={
        "vocab_size": 76800,
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "num_hidden_layers": 80,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
    },
    base="Llama",
    gguf=None,
)

register(INTERNLM3, IQUEST)
