"""Causal or full self-attention as custom operators for torch.compile.

The compiler cannot trace the switch to oneDNN or the loop over blocks, which would break the graph at each layer. A
custom operator is one opaque node of the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkv.ops.at_least_single import single_or_wider
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.attention.twins import fused_onednn, tiled
from qkv.ops.masks import Causal, Full, Sites

TWINS = ("tiled", "sdpa, oneDNN")


def attention(twin: str, q: Tensor, k: Tensor, v: Tensor, problem: AttentionProblem) -> Tensor:
    """Compute attention O (B, H, N, Dv) by the implementation ``twin`` of ``TWINS``; shapes as in ``reference``."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    causal = not problem.mask.sees_all(problem.sites.span())
    return _forward(q, k, v, twin, causal, problem.scale)[0]


def _bands(q: Tensor, causal: bool) -> list[tiled.Band]:
    count = q.shape[2]
    steps = torch.arange(count, device=q.device)[None]
    problem = AttentionProblem(Causal() if causal else Full(), Sites(steps, steps, aligned=True), 1.0)
    return list(tiled.bands(problem, count, count))


@torch.library.custom_op("qkv::attention", mutates_args=())
def _forward(q: Tensor, k: Tensor, v: Tensor, twin: str, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Return (O, log-sum-exp of each query's scores); the log-sum-exp is empty for "tiled", which does not need it."""
    if twin == "tiled":
        out = tiled.forward(q, k, v, _bands(q, causal), scale)
        return out, q.new_empty(0, dtype=torch.float32)
    out, log_sum = fused_onednn.forward(q, k, v, causal, scale)
    return out.contiguous(), log_sum.contiguous()


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, twin: str, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    rest = 0 if twin == "tiled" else q.shape[:3]
    return q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(rest, dtype=single_or_wider(q.dtype))


@torch.library.custom_op("qkv::attention_backward", mutates_args=())
def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, rest: Tensor, twin: str, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    if twin == "tiled":
        grads = tiled.backward(grad, (q, k, v), _bands(q, causal), scale)
    else:
        grads = fused_onednn.backward(grad, (q, k, v, out, rest), causal, scale)
    dq, dk, dv = (t.contiguous() for t in grads)
    return dq, dk, dv


@_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, rest: Tensor, twin: str, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (t.new_empty(t.shape) for t in (q, k, v))
    return dq, dk, dv


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *ctx.options = inputs
    ctx.save_for_backward(q, k, v, *output)


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *_backward(grad, *ctx.saved_tensors, *ctx.options), None, None, None


_forward.register_autograd(_gradients, setup_context=_save)
