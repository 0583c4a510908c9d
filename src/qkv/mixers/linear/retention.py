"""Retention: a matrix state that decays at a fixed rate per head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, from_heads, matrix
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points, standard
from qkv.mixers.linear.states import read_states, replaced_states
from qkv.mixers.projections import offer_outputs
from qkv.ops import positions as position_ops
from qkv.ops.at_least_single import single_or_wider
from qkv.ops.matrix_state.decayed import decayed
from qkv.ops.matrix_state.reference import decayed_states
from qkv.spec.mixers import matrix_state as spec
from qkv.spec.register import implements

_EPS = 1e-6
"""Epsilon of the norm over a head."""


@implements(spec.Retention)
class Retention(Branch):
    """Retention (Sun et al. 2023); see the spec for the equations.

        x (B, N, D) ─┬─ qkv ── q, k (B, H, N, Dk), rotated; v (B, H, N, Dv) ── S ── norm ─┐
                     └─ gate ── silu ────────────────────────────────────────────────── ⊙ ┴─ output ─ (B, N, D)

    State: S (B, H, Dk, Dv), independent of the length.
    """

    rewindable = False

    def __init__(self, part: spec.Retention, width: int):
        super().__init__(part, width)
        self.part, self.num_heads = part, part.num_heads
        self.head_dim, self.value_dim = part.dims(width)
        keys, values = part.num_heads * self.head_dim, part.num_heads * self.value_dim
        self.sizes = keys, keys, values
        self.qkv, self.gate = Linear(width, sum(self.sizes), bias=part.bias), Linear(width, values, bias=part.bias)
        self.output = Linear(values, width, bias=part.bias)

    def layouts(self) -> Layouts:
        keys, values = (self.sizes[0], self.head_dim), (self.sizes[2], self.value_dim)
        return {"qkv": matrix(q=keys, k=keys, v=values), "gate": matrix(gate=values), "output": from_heads(*values)}

    def points(self) -> Points:
        return standard("q", "k", "v", "state", "gate", "head_outputs")

    def init_state(self, batch: int, capacity: int | None = None) -> Tensor:
        return self.qkv.weight.detach().new_zeros(batch, self.num_heads, self.head_dim, self.value_dim)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        heads = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).split(self.sizes, -1))
        q, k, v = (self.offer(context.tap, name, value) for name, value in zip(("q", "k", "v"), heads, strict=True))
        if self.part.base is not None:
            kind = single_or_wider(q.dtype)
            cos, sin = context.once(("retention", self.part, kind), lambda: self._angles(context, kind))
            q, k = position_ops.rotate(q, cos, sin), position_ops.rotate(k, cos, sin)
        log_decay = self._log_decay(x).expand(1, -1, x.shape[1])
        k = k * self.head_dim**-0.5
        replaced = self._replaced(k, v, log_decay, context, state)
        if replaced is None:
            out, last = decayed(q, k, v, log_decay, state, context.valid, context.segments, self.part.chunk)
        else:
            out, last = read_states(q, replaced, state, context)
        out = F.rms_norm(out, (self.value_dim,), eps=_EPS).transpose(1, 2).flatten(2)
        gate = F.silu(self.offer(context.tap, "gate", self.gate(x)))
        return self.output(offer_outputs(self, out * gate, context, self.value_dim)), last

    def _replaced(
        self, k: Tensor, v: Tensor, log_decay: Tensor, context: Context, before: Tensor | None
    ) -> Tensor | None:
        """Offer the states (B, H, N, Dk, Dv) to the tap; return its replacement, or None."""
        if not self.offers(context.tap, "state"):
            return None
        valid, empty = context.valid, k.new_zeros(len(v), self.num_heads, self.head_dim, self.value_dim)
        if valid is not None:
            k, log_decay = k * valid[:, None, :, None], log_decay * valid[:, None]
        starts = context.document_starts
        return replaced_states(self, context, before, empty, lambda s: decayed_states(k, v, log_decay, s, starts))

    def _log_decay(self, x: Tensor) -> Tensor:
        """Return the logarithm of each head's decay γ, (1, H, 1)."""
        heads = torch.arange(self.num_heads, device=x.device, dtype=torch.float64)
        return torch.log1p(-(2.0 ** (-5 - heads)))[None, :, None].to(single_or_wider(x.dtype))

    def _angles(self, context: Context, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        assert self.part.base is not None
        device = context.positions.device
        frequencies = position_ops.inverse_frequencies(self.head_dim, self.part.base, device, dtype)
        return position_ops.rotation(context.positions[:, None], frequencies)

    def state_bytes(self, length: int, batch: int = 1) -> int:
        return batch * self.num_heads * self.head_dim * self.value_dim * self.qkv.weight.element_size()

    def ending(self) -> nn.Module:
        return self.output
