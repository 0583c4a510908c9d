"""Emu3 (BAAI 2024), the language model alone: Llama's blocks with dropout of the branches' outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qkv.interop.families.common import gated
from qkv.interop.families.common.heads import language_model
from qkv.interop.families.decoders import llama
from qkv.interop.mapping.config import Config
from qkv.interop.registry import register
from qkv.spec.heads import Head
from qkv.spec.model import Model


def spec(config: Config, head: Head) -> Model:
    """Build the spec of Emu3: ``attention_dropout`` is also the rate of dropout of each branch's output."""
    return gated.with_blocks(llama.spec(config, head), dropout=config.number("attention_dropout"))


def config(spec: Model) -> dict[str, Any] | None:
    """Return config.json keys for ``spec``; None if its structure is not Emu3's. Callers read them back to verify."""
    keys = llama.config(spec)
    return keys and {**keys, "pad_token_id": 0}  # the library's default id exceeds a small vocabulary


EMU3 = replace(
    llama.LLAMA,
    name="Emu3",
    model_types=("emu3_text_model",),
    architectures={"Emu3ForCausalLM": language_model(tied=False)},
    spec=spec,
    config=config,
    defaults={
        "vocab_size": 184622,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 9216,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "attention_dropout": 0.1,
    },
    base="Llama",
    gguf=None,
)

register(EMU3)
