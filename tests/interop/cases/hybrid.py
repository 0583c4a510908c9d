"""Decoders whose layers have mixers of different kinds: short convolutions, the delta rule, state spaces, attention."""

from __future__ import annotations

from typing import Any

import transformers as hf
from tests.interop.cases.case import Case
from tests.interop.cases.llama import SIZES
from tests.interop.cases.rotary import joined


def case(name: str, stem: str, steps: int = 16, **changed: Any) -> Case:
    """A case of the language model of ``stem``."""
    given = {**SIZES, "hidden_size": 24, "pad_token_id": None, **changed}
    config = getattr(hf, f"{stem.replace('Qwen3_5', 'Qwen3_5Text')}Config")(**given)
    return Case(name, getattr(hf, f"{stem}ForCausalLM"), config, steps=steps, joined=joined)


DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 5,
    "linear_conv_kernel_dim": 3,
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
CASES = (
    case(
        "lfm2",
        "Lfm2",
        num_hidden_layers=3,
        layer_types=["conv", "full_attention", "conv"],
        block_multiple_of=10,
        conv_L_cache=4,
        norm_eps=1e-3,
    ),
    case("qwen3.5", "Qwen3_5", attention_bias=True, rms_norm_eps=1e-3, **DELTA),
)
