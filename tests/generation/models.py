"""Small models of different mixers, with weights large enough that their choices differ from step to step."""

from __future__ import annotations

from functools import cache
from typing import Any

from qkv.models.build import build
from qkv.models.transformer import Transformer
from qkv.spec.model import Model

VOCABULARY = 23

STACKS: dict[str, dict[str, Any]] = {
    "learned": {"context_length": 64, "blocks": [{"branches": ["attention", "feed_forward"]}]},
    "rope": {"blocks": [{"branches": ["attention(num_kv_heads=2, relative=rope)", "gated_feed_forward"]}]},
    "alibi": {"blocks": [{"branches": ["attention(num_kv_heads=1, relative=alibi)"]}]},
    "window": {
        "blocks": [
            {
                "branches": [
                    {"kind": "attention", "mask": "causal & window(4, sinks=2)", "relative": "rope"},
                    "feed_forward",
                ]
            }
        ]
    },
    "linear": {"blocks": [{"branches": ["linear_attention", "feed_forward"]}]},
    "shift": {"blocks": [{"branches": ["token_shift(groups=4)", "feed_forward"]}]},
    "convolution": {"blocks": [{"branches": ["causal_convolution(dilation=2)"]}]},
    "gru": {"blocks": [{"branches": ["gru"]}]},
    "memory": {
        "blocks": [{"branches": ["attention(relative=rope)", "feed_forward"]}],
        "segmentation": "recurrent_memory(3, num_memory=2)",
    },
    "patches": {
        "blocks": [{"branches": ["attention(relative=rope)", "feed_forward"]}],
        "segmentation": "megabyte(3)",
    },
    "all": {
        "context_length": 64,
        "blocks": [
            {
                "order": "parallel",
                "branches": [
                    {"kind": "attention", "mask": "causal & window(5)"},
                    "attention",
                    "linear_attention(chunk=4)",
                    "token_shift",
                ],
            },
            {"order": "sandwich", "norm": "rms_norm", "branches": ["causal_convolution", "gru", "gated_feed_forward"]},
        ],
    },
}


@cache
def model(name: str, **changes: Any) -> Transformer:
    """The model of one of ``STACKS``; only ``learned`` and ``all`` have positions that end."""
    fields = {
        "width": 16,
        "context_length": 8,
        "init_std": 0.5,
        "head": "language_model(tied=false)",
        **STACKS[name],
        **changes,
    }
    positions = "learned" if name in ("learned", "all") else "none"
    spec = Model.parse(
        {**fields, "num_layers": 2, "frontend": {"kind": "text", "vocab_size": VOCABULARY, "positions": positions}}
    )
    return build(spec, seed=3).eval()
