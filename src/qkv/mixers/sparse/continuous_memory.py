"""Attention to a window, and to a continuous signal that represents all earlier positions (∞-former)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.branch import State
from qkv.layers.context import Context
from qkv.layers.layout import Layouts, matrix, vector
from qkv.layers.linear.linear import Linear
from qkv.mixers.attention.attend import attend
from qkv.mixers.attention.attention import KeyValueAttention
from qkv.mixers.projections import offer_outputs
from qkv.mixers.whole_rows import each_row
from qkv.ops import positions as position_ops
from qkv.ops.at_least_single import single_or_wider
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.sparse import continuous_memory as ops
from qkv.spec.mixers import continuous_memory as spec
from qkv.spec.register import implements


@implements(spec.ContinuousMemory)
class ContinuousMemory(KeyValueAttention):
    """Local attention and a continuous long-term memory (Martins et al. 2022); see the spec for the equations.

        x (B, N, D) ─┬─ qkv ── q, k, v ─┬─ rotate ─ the last W keys ── local ─┐
                     │                  └─ q ─ μ, σ² ─┐                       + ─ output ─ (B, N, D)
                     └─ memory ── (B, G, N, Dk + Dv) ─┴ signal ─ E_p[V] ──────┘

    State: keys and values of the window; coefficients of the signal's keys and values (B, G, N_b, Dk + Dv);
    coefficients of the same shape for the current segment. Independent of the length.
    """

    def __init__(self, part: spec.ContinuousMemory, width: int):
        super().__init__(part, width)
        self.part, self.kept_dim = part, self.head_dim + self.value_dim
        self.memory = Linear(width, self.kv_heads * self.kept_dim, bias=False)
        self.density = nn.Parameter(torch.randn(part.num_heads, 2, part.num_basis) * part.num_basis**-0.5)
        self.density_bias = nn.Parameter(_side_by_side(part.num_heads))
        self.fit = ops.fit(
            part.num_basis,
            part.basis_width / part.num_basis,
            part.segment,
            part.samples,
            part.contraction,
            part.ridge,
        )

    def layouts(self) -> Layouts:
        heads = {name: vector("q", self.num_heads, 1) for name in ("density", "density_bias")}
        return {**super().layouts(), "memory": matrix(kv=(self.kv_heads * self.kept_dim, self.kept_dim)), **heads}

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        sizes = batch, self.kv_heads, self.part.num_basis, self.kept_dim
        like = self.like().detach()
        return super().init_state(batch, capacity), like.new_zeros(sizes), like.new_zeros(sizes)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        q, k, v = self.projected(x, context)
        pairs = self.memory(x)
        store, *memory = (None,) if state is None else state
        near, store = self._near(q, k, v, context, store)
        if state is None:
            rows = torch.cat((q.transpose(1, 2).flatten(2), pairs), -1)
            far = each_row(rows, context, lambda rows, _: self._far(rows, context), self.spec.kind)
        else:
            pairs = pairs.unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
            far, *memory = self._continued(q, pairs, context, *memory)
            far, state = far.transpose(1, 2).flatten(2), (store, *memory)
        out = offer_outputs(self, near.transpose(1, 2).flatten(2) + far, context, self.value_dim)
        return self.output(out), state

    def _near(
        self, q: Tensor, k: Tensor, v: Tensor, context: Context, store: State | None
    ) -> tuple[Tensor, State | None]:
        """Return attention to the window (B, H, N, Dv), and the next store of its keys and values."""
        if self.part.base is not None:
            kind = single_or_wider(q.dtype)
            cos, sin = context.once(("continuous memory", self.part, kind), lambda: self._angles(context, kind))
            q, k = position_ops.rotate(q, cos, sin), position_ops.rotate(k, cos, sin)
        k, v, store, sites = self.with_past(k, v, context, store)
        dropout = self.part.dropout if self.training else 0.0
        problem = AttentionProblem(self.mask, sites, self.scale, dropout=dropout)
        return attend(self, (q, k, v), problem, context), store

    def _angles(self, context: Context, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        assert self.part.base is not None
        device = context.positions.device
        frequencies = position_ops.inverse_frequencies(self.head_dim, self.part.base, device, dtype)
        return position_ops.rotation(context.positions[:, None], frequencies)

    def _fit(self, like: Tensor, context: Context) -> ops.Fit:
        """Return the regression's matrices in the dtype and on the device of ``like``.

        They are copied once for all layers with the same settings.
        """
        kind = single_or_wider(like.dtype)
        return context.once(("fit", self.part, kind), lambda: self.fit.like(like))

    def _read(self, q: Tensor, memory: Tensor, fit: ops.Fit) -> Tensor:
        """Read each row's memory with its queries; return the contexts (B, H, N, Dv)."""
        density = ops.Density(self.density, self.density_bias)
        return ops.read(q[:, :, None], memory[:, :, None], density, fit, self.scale)[:, :, 0]

    def _far(self, rows: Tensor, context: Context) -> Tensor:
        """Compute contexts (R, N, H Dv) of whole rows of queries and the memory's keys and values, concatenated."""
        q, pairs = rows.split((self.sizes[0], self.kv_heads * self.kept_dim), -1)
        q, pairs = (
            t.unflatten(-1, (heads, -1)).transpose(1, 2) for t, heads in ((q, self.num_heads), (pairs, self.kv_heads))
        )
        density, fit = ops.Density(self.density, self.density_bias), self._fit(pairs, context)
        return ops.whole(q, pairs, density, fit, self.scale).transpose(1, 2).flatten(2)

    def _continued(
        self, q: Tensor, pairs: Tensor, context: Context, memory: Tensor, sums: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute contexts, next memory and next sums for any number of positions, at most a segment at a time."""
        arrival, fit, size = context.arrival, self._fit(pairs, context), self.part.segment
        assert arrival is not None
        came = [after - past for past, after in zip(arrival.past, arrival.after, strict=True)]
        outs, first, aligned = [q.new_zeros(*q.shape[:3], self.value_dim)[:, :, :0]], 0, min(arrival.past, default=0)
        while first < q.shape[2]:
            last = min(first + size - (aligned + first) % size, q.shape[2])
            bounds = [
                (past + min(count, first), past + min(count, last))
                for past, count in zip(arrival.past, came, strict=True)
            ]
            out, memory, sums = self._step(q[:, :, first:last], pairs[:, :, first:last], bounds, memory, sums, fit)
            outs.append(out)
            first = last
        return torch.cat(outs, 2), memory, sums

    def _step(
        self, q: Tensor, pairs: Tensor, bounds: list[tuple[int, int]], memory: Tensor, sums: Tensor, fit: ops.Fit
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute contexts, next memory and next sums for up to S positions.

        bounds: (number of positions read before the step, number after it) for each row. The first positions of a row
        belong to its current segment; if they complete it, the others belong to the next segment.
        """
        size = self.part.segment
        before, after = torch.tensor(bounds, device=q.device).view(-1, 2).unbind(1)
        steps = torch.arange(q.shape[2], device=q.device)
        slots, real = (before % size)[:, None] + steps, (steps < (after - before)[:, None])[:, None, :, None]
        here = (slots < size)[:, None, :, None]
        follows = before[:, None] + steps >= size
        weights = fit.positions[slots % size + size * follows][:, None]
        pairs = pairs.masked_fill(~real, 0.0)
        total = sums + ops.fitted(weights, pairs.masked_fill(~here, 0.0)).to(sums.dtype)
        out = self._read(q, memory, fit)
        ends = [other % size for one, other in bounds if one // size != other // size]
        if not ends:
            return out, memory, total
        complete = (after // size > before // size)[:, None, None, None]
        fresh = ops.contracted(memory, fit).to(memory.dtype) + total
        rest = torch.zeros_like(sums)
        if any(ends):
            out = torch.where(here, out, self._read(q, fresh, fit))
            rest = ops.fitted(weights, pairs.masked_fill(here, 0.0)).to(sums.dtype)
        return out, torch.where(complete, fresh, memory), torch.where(complete, rest, total)

    def state_bytes(self, length: int, batch: int = 1) -> int:
        coefficients = 2 * self.kv_heads * self.part.num_basis * self.kept_dim
        return super().state_bytes(length, batch) + batch * coefficients * self.like().element_size()


def _side_by_side(num_heads: int) -> Tensor:
    """Return biases (H, 2) with which head h reads around time (h + ½) / H, with a standard deviation of 1 / (2 H)."""
    centres = (torch.arange(num_heads) + 0.5) / num_heads
    variance = torch.full((num_heads,), 0.25 / num_heads**2)
    return torch.stack((torch.logit(centres), torch.log(torch.expm1(variance))), -1)
