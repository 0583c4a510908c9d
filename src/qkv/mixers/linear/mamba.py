"""Mamba: a selective state-space model with a state for each feature."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import WHOLE, Layouts, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import build_norm
from qkv.layers.observable import Points, standard
from qkv.mixers.linear.decay import initial_step_bias
from qkv.mixers.linear.short_convolution import ShortConvolution
from qkv.ops.matrix_state.selective import selective_scan
from qkv.spec.mixers import mamba as spec
from qkv.spec.register import implements


@implements(spec.Mamba)
class Mamba(Branch):
    """Mamba (Gu & Dao 2023); see the spec for the equations.

        u (B, N, D) ─ input ─┬─ x (B, N, E) ─ convolution ─┬──────────────────────────── h ─ ⊙ ─ output ─ (B, N, D)
                             │                             └─ selection ─ δ, b, c (B, N, ·) ─┘ │
                             └─ z (B, N, E) ─ silu ────────────────────────────────────────────┘

    State: the last K - 1 inputs of the convolution, and h (B, E, state_size).
    """

    rewindable = False

    def __init__(self, part: spec.Mamba, width: int):
        super().__init__(part, width)
        self.part, self.inner, rank = part, part.inner(width), part.rank_at(width)
        self.sizes = rank, part.state_size, part.state_size
        self.input = Linear(width, 2 * self.inner, bias=part.bias)
        self.convolution = ShortConvolution(self.inner, part.kernel_size, part.convolution_bias)
        self.selection = Linear(self.inner, sum(self.sizes), bias=False)
        self.norms = nn.ModuleList(build_norm(part.norm, size) for size in self.sizes)
        self.step = Linear(rank, self.inner, bias=False)
        self.step_bias = nn.Parameter(initial_step_bias(self.inner))
        rates = torch.arange(1.0, part.state_size + 1).log()
        self.log_rate = nn.Parameter(rates.repeat(self.inner, 1))  # 1 … S, as in S4D
        self.skip = nn.Parameter(torch.ones(self.inner))
        self.output = Linear(self.inner, width, bias=part.bias)

    def layouts(self) -> Layouts:
        rank, state, _ = self.sizes
        return {
            "input": matrix(value=self.inner, gate=self.inner),
            "selection": matrix(step=rank, key=state, query=state),
            "log_rate": WHOLE,
        }

    def points(self) -> Points:
        return {**standard("gate"), "step": "step size (B, N, E)", **standard("activation")}

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        sizes = batch, self.inner, self.part.state_size
        return self.convolution.init_state(batch), self.input.weight.detach().new_zeros(sizes)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        tail, before = (None, None) if state is None else state
        value, gate = self.input(x).chunk(2, -1)
        gate = self.offer(context.tap, "gate", gate)
        value, tail = self.convolution(value, context, tail)
        parts = zip(self.norms, self.selection(value).split(self.sizes, -1), strict=True)
        rank, key, query = (norm(part, context) for norm, part in parts)
        step = self.offer(context.tap, "step", F.softplus(self.step(rank) + self.step_bias))
        scanned = (value, step, key, query)
        out, last = selective_scan(scanned, self.log_rate.exp(), before, context.valid, context.document_starts)
        out = self.offer(context.tap, "activation", (out + self.skip * value) * F.silu(gate))
        return self.output(out), None if state is None else (tail, last)

    def state_bytes(self, length: int, batch: int = 1) -> int:
        numbers = self.inner * (self.part.kernel_size - 1 + self.part.state_size)
        return batch * numbers * self.input.weight.element_size()

    def ending(self) -> nn.Module:
        return self.output
