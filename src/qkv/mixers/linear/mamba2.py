"""Mamba-2: a state-space model as a matrix state with a decay that depends on the input."""

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
from qkv.ops.matrix_state.decayed import decayed
from qkv.ops.matrix_state.reference import decayed_states
from qkv.spec.mixers import matrix_state as spec
from qkv.spec.register import implements


@implements(spec.Mamba2)
class Mamba2(Branch):
    """Mamba-2 (Dao & Gu 2024); see the spec for the equations.

        u (B, N, D) ─ input ─┬─ z (B, N, E) ─ silu ─────────────────────────────── ⊙ ─ norm ─ output ─ (B, N, D)
                             ├─ x (B, N, E), b, c (B, N, G Ns) ─ convolution ── S ─┘
                             └─ δ (B, N, H) ─ softplus ─────────────────────────┘

    State: the last K - 1 inputs of the convolution, and S (B, H, state_size, E / H).
    """

    rewindable = False

    def __init__(self, part: spec.Mamba2, width: int):
        super().__init__(part, width)
        self.part, self.inner = part, part.inner(width)
        self.head_dim, shared = self.inner // part.num_heads, part.num_groups * part.state_size
        self.sizes = self.inner, shared, shared
        self.input = Linear(width, self.inner + sum(self.sizes) + part.num_heads, bias=part.bias)
        self.convolution = ShortConvolution(sum(self.sizes), part.kernel_size, part.convolution_bias)
        self.step_bias = nn.Parameter(initial_step_bias(part.num_heads))
        self.log_rate = nn.Parameter(initial_log_rates(part.num_heads))
        self.skip = nn.Parameter(torch.ones(part.num_heads))
        self.scale = None if part.norm == "none" else nn.Parameter(torch.ones(self.inner))
        self.output = Linear(self.inner, width, bias=part.bias)

    def layouts(self) -> Layouts:
        part, values = self.part, (self.inner, self.head_dim)
        shared = self.sizes[1], part.state_size
        return {
            "input": matrix(gate=values, value=values, key=shared, query=shared, step=part.num_heads),
            "output": from_heads(*values),
        }

    def points(self) -> Points:
        step = {"step": "step size (B, H, N)"}
        return {**standard("gate", "q", "k", "v"), **step, **standard("log_decay", "state", "head_outputs")}

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        sizes = batch, self.part.num_heads, self.part.state_size, self.head_dim
        return self.convolution.init_state(batch), self.input.weight.detach().new_zeros(sizes)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        tail, before = (None, None) if state is None else state
        gate, inputs, steps = self._mapped(x).split((self.inner, sum(self.sizes), self.part.num_heads), -1)
        gate = self.offer(context.tap, "gate", gate)
        inputs, tail = self.convolution(inputs, context, tail)
        values, keys, queries = inputs.split(self.sizes, -1)
        heads = (self._groups(queries), self._groups(keys), values.unflatten(-1, (-1, self.head_dim)).transpose(1, 2))
        q, k, v = (self.offer(context.tap, name, value) for name, value in zip(("q", "k", "v"), heads, strict=True))
        step = self.offer(context.tap, "step", self._steps(steps))
        log_decay = self.offer(context.tap, "log_decay", -self.log_rate.exp()[:, None] * step)
        out, last = self._read(q, k, v * step[..., None], log_decay, before, context)
        out = self._gated((out + self.skip[:, None, None] * v).transpose(1, 2).flatten(2), gate)
        out = offer_outputs(self, out, context, self.head_dim)
        return self.output(out), None if state is None else (tail, last)

    def _read(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, before: Tensor | None, context: Context
    ) -> tuple[Tensor, Tensor | None]:
        """Return (o (B, H, N, Dv), next S), computed from a tap's replacement of the states if there is one."""
        replaced = self._replaced(k, v, log_decay, context, before)
        if replaced is None:
            return decayed(q, k, v, log_decay, before, context.valid, context.segments, self.part.chunk)
        return read_states(q, replaced, before, context)

    def _replaced(
        self, k: Tensor, v: Tensor, log_decay: Tensor, context: Context, before: Tensor | None
    ) -> Tensor | None:
        """Offer the states (B, H, N, Dk, Dv) to the tap; return its replacement, or None."""
        if not self.offers(context.tap, "state"):
            return None
        valid, empty = context.valid, k.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1])
        if valid is not None:
            k, log_decay = k * valid[:, None, :, None], log_decay * valid[:, None]
        starts = context.document_starts
        return replaced_states(self, context, before, empty, lambda s: decayed_states(k, v, log_decay, s, starts))

    def _steps(self, x: Tensor) -> Tensor:
        """Compute the step sizes (B, H, N) from their linear map x (B, N, H)."""
        steps = F.softplus(x + self.step_bias).transpose(1, 2)
        return steps.clamp(min=self.part.min_step) if self.part.min_step else steps

    def _mapped(self, x: Tensor) -> Tensor:
        """Map x to z, the inputs of the convolution and δ, concatenated, each times its factor."""
        mapped, factors = self.input(x), self.part.factors
        if not factors:
            return mapped
        pieces = mapped.split((self.inner, *self.sizes, self.part.num_heads), -1)
        return torch.cat([factor * piece for factor, piece in zip(factors, pieces, strict=True)], -1)

    def _gated(self, x: Tensor, gate: Tensor) -> Tensor:
        """Multiply x by silu(gate), (B, N, E) each, and normalise x before or after that."""
        if self.part.norm == "before_gate":
            return self._norm(x) * F.silu(gate)
        return self._norm(x * F.silu(gate))

    def _norm(self, x: Tensor) -> Tensor:
        """Normalise each group of the features of x (B, N, E), if there is a norm."""
        if self.scale is None:
            return x
        groups, scale, eps = self.part.norm_groups, self.scale.to(x.dtype), self.part.eps
        if groups == 1:
            return F.rms_norm(x, (self.inner,), scale, eps)
        return F.rms_norm(x.unflatten(-1, (groups, -1)), (self.inner // groups,), None, eps).flatten(-2) * scale

    def _groups(self, x: Tensor) -> Tensor:
        """Split features (B, N, G · state_size) into (B, 1, N, state_size), or (B, H, N, state_size) if G > 1."""
        part = self.part
        groups = x.unflatten(-1, (part.num_groups, part.state_size)).transpose(1, 2)
        return groups if part.num_groups == 1 else groups.repeat_interleave(part.num_heads // part.num_groups, 1)

    def state_bytes(self, length: int, batch: int = 1) -> int:
        tail = (self.part.kernel_size - 1) * sum(self.sizes)
        return batch * (tail + self.part.state_size * self.inner) * self.input.weight.element_size()

    def ending(self) -> nn.Module:
        return self.output
