"""Gated delta rule: a matrix state that is corrected towards new values, and decays."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, from_heads, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points, standard
from qkv.mixers.linear.decay import initial_log_rates, initial_step_bias
from qkv.mixers.linear.short_convolution import ShortConvolution
from qkv.mixers.linear.states import read_states, replaced_states
from qkv.mixers.projections import offer_outputs
from qkv.ops.matrix_state.delta import delta
from qkv.ops.matrix_state.reference import delta_states
from qkv.spec.mixers import matrix_state as spec
from qkv.spec.register import implements

_UNIT_EPS = 1e-6
"""Epsilon of the L2 normalisation of queries and keys, as in the published models."""


@implements(spec.GatedDelta)
class GatedDelta(Branch):
    """Gated delta rule (Yang et al. 2025); see the spec for the equations.

        x (B, N, D) ─┬─ qkv ── convolution ── q, k (B, G, N, Dk), v (B, H, N, Dv) ── S ── norm ─┐
                     ├─ strength, forgetting (B, N, H) ─────────────────────────────┘           │
                     └─ gate ── silu ────────────────────────────────────────────────────────── ⊙ ─ output ─ (B, N, D)

    State: the last K - 1 inputs of the convolution, and S (B, H, Dk, Dv).
    """

    rewindable = False

    def __init__(self, part: spec.GatedDelta, width: int):
        super().__init__(part, width)
        self.part, heads = part, part.num_heads
        self.head_dim, self.value_dim = part.dims(width)
        self.heads = part.key_heads, part.key_heads, heads
        self.sizes = (part.key_heads * self.head_dim,) * 2 + (heads * self.value_dim,)
        self.qkv = Linear(width, sum(self.sizes), bias=False)
        self.convolution = ShortConvolution(sum(self.sizes), part.kernel_size, part.convolution_bias)
        self.strength = Linear(width, heads, bias=False)
        self.forgetting = Linear(width, heads, bias=False) if part.decay else None
        self.step_bias = nn.Parameter(initial_step_bias(heads)) if part.decay else None
        self.log_rate = nn.Parameter(initial_log_rates(heads)) if part.decay else None
        self.gate = Linear(width, self.sizes[2], bias=False)
        self.scale = nn.Parameter(torch.ones(self.value_dim))
        self.output = Linear(self.sizes[2], width, bias=False)

    def layouts(self) -> Layouts:
        keys, values = (self.sizes[0], self.head_dim), (self.sizes[2], self.value_dim)
        return {"qkv": matrix(q=keys, k=keys, v=values), "gate": matrix(gate=values), "output": from_heads(*values)}

    def points(self) -> Points:
        strength = {"strength": "strength of the update of the state, between 0 and its maximum (B, H, N)"}
        decay = standard("log_decay") if self.part.decay else {}
        return {**standard("q", "k", "v"), **strength, **decay, **standard("state", "gate", "head_outputs")}

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        sizes = batch, self.part.num_heads, self.head_dim, self.value_dim
        return self.convolution.init_state(batch), self.qkv.weight.detach().new_zeros(sizes)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        tail, before = (None, None) if state is None else state
        inputs, tail = self.convolution(self.qkv(x), context, tail)
        q, k, v = self._vectors(inputs, context)
        strength = self.part.max_strength * self.strength(x).sigmoid().transpose(1, 2)
        strength = self.offer(context.tap, "strength", strength)
        log_decay = None
        if self.forgetting is not None and self.step_bias is not None and self.log_rate is not None:
            steps = F.softplus(self.forgetting(x) + self.step_bias).transpose(1, 2)
            log_decay = self.offer(context.tap, "log_decay", -self.log_rate.exp()[:, None] * steps)
        q = q * self.head_dim**-0.5
        replaced = self._replaced(k, v, (strength, log_decay), context, before)
        if replaced is None:
            out, last = delta(q, k, v, strength, log_decay, before, context.valid, context.segments, self.part.chunk)
        else:
            out, last = read_states(q, replaced, before, context)
        out = F.rms_norm(out, (self.value_dim,), self.scale.to(out.dtype), self.part.eps).transpose(1, 2).flatten(2)
        out = out * F.silu(self.offer(context.tap, "gate", self.gate(x)))
        return self.output(offer_outputs(self, out, context, self.value_dim)), None if state is None else (tail, last)

    def _vectors(self, inputs: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Split (B, N, F) into q and k (B, H, N, Dk), of length 1, and v (B, H, N, Dv), each for all heads."""
        parts = zip(inputs.split(self.sizes, -1), self.heads, strict=True)
        heads = [part.unflatten(-1, (count, -1)).transpose(1, 2) for part, count in parts]
        q, k, v = (self.offer(context.tap, name, value) for name, value in zip(("q", "k", "v"), heads, strict=True))
        q, k = (t * (t.square().sum(-1, keepdim=True) + _UNIT_EPS).rsqrt() for t in (q, k))
        shared = self.part.num_heads // self.part.key_heads
        return (q, k, v) if shared == 1 else (q.repeat_interleave(shared, 1), k.repeat_interleave(shared, 1), v)

    def _replaced(
        self, k: Tensor, v: Tensor, gates: tuple[Tensor, Tensor | None], context: Context, before: Tensor | None
    ) -> Tensor | None:
        """Offer the states (B, H, N, Dk, Dv) to the tap; return its replacement, or None. gates: (b, log a)."""
        if not self.offers(context.tap, "state"):
            return None
        (strength, log_decay), valid = gates, context.valid
        if valid is not None:
            strength = strength * valid[:, None]
            log_decay = None if log_decay is None else log_decay * valid[:, None]
        starts, empty = context.document_starts, k.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1])
        return replaced_states(
            self, context, before, empty, lambda s: delta_states(k, v, strength, log_decay, s, starts)
        )

    def state_bytes(self, length: int, batch: int = 1) -> int:
        tail = (self.part.kernel_size - 1) * sum(self.sizes)
        matrices = self.part.num_heads * self.head_dim * self.value_dim
        return batch * (tail + matrices) * self.qkv.weight.element_size()

    def ending(self) -> nn.Module:
        return self.output
