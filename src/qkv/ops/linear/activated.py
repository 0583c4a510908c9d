"""Linear layer and activation, φ(x W^T + b), as two operations or as oneDNN's fused operation.

A feed-forward layer often has four times as many outputs as inputs. A separate activation reads and writes all outputs
again; oneDNN applies it to each part of the outputs while this part is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.ops.activation import Activation, plain_inference
from qkv.ops.linear import operator
from qkv.ops.linear.choose import SAMPLES, SMALLEST, kind_of, linear
from qkv.ops.selection.choices import Choice, choose, chosen, fastest

_OP = "linear and activation"
_KINDS = ("many rows", "many rows, large")
_FUSED = {"gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "silu": ("swish", "")}
"""oneDNN's name and variant of each supported activation. Its ReLU is excluded, because it maps NaN to 0."""


def activated(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    """Compute φ(x W^T + b) by the fastest implementation. x (…, I), weight (O, I), bias (O) or None -> (…, O)."""
    if (
        activation.name in _FUSED
        and weight.numel() >= SMALLEST
        and x.numel()
        and plain_inference(x)
        and weight.dtype == torch.float32
        and weight.is_contiguous()
    ):
        kind = kind_of(x.numel() // x.shape[-1], weight.numel())
        if kind in _KINDS and choice(activation, kind).twin == "oneDNN operator":
            return fused(x, weight, bias, activation)
    return apart(x, weight, bias, activation)


def apart(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    """Compute φ(x W^T + b) as two operations."""
    return activation(linear(x, weight, bias))


def fused(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    """Compute φ(x W^T + b) by oneDNN's fused operator, without gradients."""
    return operator.forward(x, weight, bias, *_FUSED[activation.name])


TWINS = {"apart": apart, "oneDNN operator": fused}


def choice(activation: Activation, kind: str) -> Choice:
    """Choose the implementation for inference for a ``kind``, "many rows" or "many rows, large"; timed once."""
    case = f"{activation.name}, {kind}"

    def decide() -> Choice:
        if not operator.available():
            return Choice(_OP, case, "apart", "this build of torch lacks oneDNN's fused operator")
        rows, inner, outer = SAMPLES[kind]
        x, weight = torch.linspace(-4, 4, rows)[:, None].expand(-1, inner).contiguous(), torch.eye(outer, inner)
        with torch.no_grad():
            apart(x, weight, None, activation)  # makes the choices for its two operations

        def run(twin: Callable[..., Tensor]) -> Callable[[], object]:
            def timed() -> Tensor:
                with torch.no_grad():
                    return twin(x, weight, None, activation)

            return timed

        runs = {name: run(twin) for name, twin in TWINS.items()}
        return fastest(_OP, case, "apart", runs, f"forward at {rows} × {inner} × {outer}")

    return chosen(_OP, case) or choose(_OP, case, decide, TWINS)
