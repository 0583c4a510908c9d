"""Predicted and measured cost of a training step: five specs, five published families, a mixer outside the package.

    python -m tests.costs.check_cost

FLOPs are measured by torch's counter with the reference of attention, memory by the live tensors of a real step. Exits
with 1 if a FLOP count is off by more than 5 % or memory by more than 15 %.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from qkv.costs.cost import Cost, cost
from qkv.costs.counting.losses import summed_loss
from qkv.costs.measuring.measure import Update, check
from qkv.interop.load import described
from qkv.layers.branch import Branch
from qkv.layers.context import Context
from qkv.layers.linear.linear import Linear
from qkv.spec import branches as spec
from qkv.spec.model import Model
from qkv.spec.register import implements
from qkv.training.optim.optimisers import build_optimizer

FLOPS, MEMORY = 0.05, 0.15
SIZES: dict[str, Any] = {
    "width": 64,
    "num_layers": 5,
    "context_length": 96,
    "frontend": {"kind": "text", "vocab_size": 65},
}
READS = {"branches": ["attention(4)", "cross_attention(4)", "feed_forward"]}
SEES_ALL = {"branches": ["attention(4, mask=full)", "feed_forward"]}


class Outside(spec.Branch, kind="outside_of_the_package"):
    """y_i = V tanh(U mean of x up to i)."""


@implements(Outside)
class OutsideMixer(Branch):
    """Means by a running sum, no state."""

    def __init__(self, part: Outside, width: int):
        super().__init__(part, width)
        self.up, self.down = Linear(width, 3 * width), Linear(3 * width, width)

    def forward(self, x: Tensor, context: Context, state: Any = None) -> tuple[Tensor, Any]:
        mean = x.cumsum(1) / (context.positions[..., None] + 1)
        return self.down(self.up(mean).tanh()), state


Outside.kinds().pop("outside_of_the_package")

SPECS: dict[str, dict[str, Any]] = {
    "window, grouped heads, RoPE": {
        "blocks": [
            {
                "branches": [
                    "attention(num_heads=8, num_kv_heads=2, relative=rope, mask='causal & window(size=16, sinks=2)')",
                    "gated_feed_forward",
                ],
                "norm": "rms_norm",
            }
        ]
    },
    "encoder–decoder": {
        "blocks": [READS],
        "encoder": {"num_layers": 5, "context_length": 48, "frontend": SIZES["frontend"], "blocks": [SEES_ALL]},
    },
    "latents": {
        "latents": {"count": 16, "rounds": 5},
        "queries": {"count": 4},
        "blocks": [{"branches": ["cross_attention(4)", "feed_forward"]}],
        "num_layers": 1,
        "head": "classification(3)",
    },
    "LSH": {"blocks": [{"branches": ["lsh_attention(chunk_length=16, inexact_decoding=true)", "feed_forward"]}]},
    "recurrent": {
        "blocks": [{"branches": ["gru", "feed_forward"]}, {"branches": ["lstm", "linear_attention"]}],
        "num_layers": 6,
    },
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2": ("GPT2", {"n_embd": 48, "n_layer": 5, "n_head": 4, "vocab_size": 97, "n_positions": 96}),
    "Llama": (
        "Llama",
        {
            "hidden_size": 48,
            "num_hidden_layers": 5,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 96,
            "vocab_size": 97,
        },
    ),
    "Gemma 2": (
        "Gemma2",
        {
            "hidden_size": 48,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 12,
            "intermediate_size": 96,
            "vocab_size": 97,
            "sliding_window": 16,
        },
    ),
    "BERT": (
        "Bert",
        {
            "hidden_size": 48,
            "num_hidden_layers": 5,
            "num_attention_heads": 4,
            "intermediate_size": 96,
            "vocab_size": 97,
        },
    ),
    "T5": ("T5", {"d_model": 48, "num_layers": 4, "num_heads": 4, "d_kv": 12, "d_ff": 96, "vocab_size": 97}),
}
MODELS = {"Bert": "BertForMaskedLM", "T5": "T5ForConditionalGeneration"}


def published() -> Iterator[tuple[str, Model]]:
    """(name, spec) of small models with random weights, written by transformers and read by qkv."""
    for name, (family, sizes) in FAMILIES.items():
        config = getattr(transformers, f"{family}Config")(**sizes)
        model = getattr(
            transformers, MODELS.get(family, f"{family}{'LMHeadModel' if family == 'GPT2' else 'ForCausalLM'}")
        )(config)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            yield name, described(Path(folder))[0].spec


def cases() -> Iterator[tuple[str, Model]]:
    """(name, spec) of everything that is checked."""
    for name, fields in SPECS.items():
        yield name, Model.parse({**SIZES, **fields})
    yield from published()
    yield "mixer outside of the package", Model.parse({**SIZES, "blocks": [{"branches": [Outside(), "feed_forward"]}]})


def errors(counted: Cost) -> dict[str, tuple[float, float, float]]:
    """(predicted, measured, relative error) of each quantity."""
    training = counted.training
    rows = check(counted, lambda model: Update(model, summed_loss, build_optimizer(training.optimizer, model)))
    return {row.quantity: (row.predicted, row.measured, row.error) for row in rows}


def main() -> int:
    """Print the table. Returns 1 if an error is too large."""
    torch.manual_seed(0)
    wrong = 0
    print(f"{'model':30s} {'forward':>9s} {'training':>9s} {'memory':>9s} {'state':>7s}   peak, MB")
    for name, model in cases():
        length = min(model.context_length, 96)
        found = errors(cost(model, 4, length, source_length=40 if model.encoder else None))
        forward, step, peak = (
            found[key] for key in ("FLOPs, forward", "FLOPs, training step", "peak memory, training step")
        )
        state = f"{found['decoding state'][2]:+.1%}" if "decoding state" in found else "–"
        line = f"{forward[2]:+9.2%} {step[2]:+9.2%} {peak[2]:+9.2%} {state:>7s}"
        print(f"{name:30s} {line}   {peak[0] / 1e6:.2f} for {peak[1] / 1e6:.2f}", flush=True)
        wrong += abs(forward[2]) > FLOPS or abs(step[2]) > FLOPS or abs(peak[2]) > MEMORY or found["parameters"][2] != 0
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
