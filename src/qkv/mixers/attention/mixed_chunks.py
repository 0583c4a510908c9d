"""Mixed chunk attention: a gated attention unit that is quadratic within chunks and linear across them (FLASH)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points, standard
from qkv.mixers.attention.gated_attention import GatedInput
from qkv.mixers.whole_rows import each_row
from qkv.ops.gated_attention import mixed_chunks as ops
from qkv.spec.mixers import gated_attention as spec
from qkv.spec.register import implements


@implements(spec.MixedChunkAttention)
class MixedChunkAttention(Branch):
    """Gated attention unit with mixed chunk attention (FLASH, Hua et al. 2022); see the spec for the equation.

        x (B, N, D) ─ input ─ silu ─┬ u (B, N, E) ──────────────────────────────────┐
                                    ├ v (B, N, E) ───────────────┐                  │
                                    └ z (B, N, S) ─ q, k, q', k' ┴ mixed chunks ─ o ─ ⊙ ─ output ─ (B, N, D)

    State: Σ_j k'_j^T v_j of the chunks that are complete (B, S, E), and z and v of the current chunk, 0 in its empty
    slots (B, C, S + E); independent of the length.
    """

    rewindable = False

    def __init__(self, part: spec.MixedChunkAttention, width: int):
        super().__init__(part, width)
        self.causal, self.chunk = part.causal, part.chunk
        self.key_dim, self.hidden = part.key_dim, part.hidden_at(width)
        self.gated = GatedInput(part, width, 4)
        self.output = Linear(self.hidden, width, bias=part.bias)

    def points(self) -> Points:
        gate = {"gate": "gate u of the output, after its activation (B, N, E)"}
        return {**standard("v"), **gate, **standard("activation")}

    def init_state(self, batch: int, capacity: int | None = None) -> State:
        if not self.causal:
            return ()
        like = self.output.weight.detach()
        tail = like.new_zeros(batch, self.chunk, self.key_dim + self.hidden)
        return like.new_zeros(batch, self.key_dim, self.hidden), tail

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        u, v, z = self.gated(x)
        u, v = self.offer(context.tap, "gate", u), self.offer(context.tap, "v", v[:, None])[:, 0]
        if state is None or not self.causal:
            maps = self.gated.maps(z, context.positions)
            out = each_row(torch.cat((*maps, v), -1), context, self._whole, self.spec.kind)
        else:
            out, state = self._continued(z, v, context, state)
        return self.output(self.offer(context.tap, "activation", u * out)), state

    def _whole(self, rows: Tensor, real: Tensor | None) -> Tensor:
        """Compute the outputs of whole rows from concatenated maps and values (R, N, 4 S + E), 0 at padding."""
        *maps, v = rows.split((*[self.key_dim] * 4, self.hidden), -1)
        return ops.whole(ops.Maps(*maps), v, self.chunk, self.causal, real)

    def _continued(self, z: Tensor, v: Tensor, context: Context, state: State) -> tuple[Tensor, State]:
        """Compute outputs and next state for any number of positions, at most a chunk at a time."""
        outs, arrival = [v[:, :0]], context.arrival
        assert arrival is not None
        came = [after - past for past, after in zip(arrival.past, arrival.after, strict=True)]
        for first in range(0, v.shape[1], self.chunk):
            last = min(first + self.chunk, v.shape[1])
            bounds = [
                (past + min(count, first), past + min(count, last))
                for past, count in zip(arrival.past, came, strict=True)
            ]
            out, state = self._step(z[:, first:last], v[:, first:last], bounds, state)
            outs.append(out)
        return torch.cat(outs, 1), state

    def _step(self, z: Tensor, v: Tensor, bounds: list[tuple[int, int]], state: State) -> tuple[Tensor, State]:
        """Compute outputs and next state for up to C positions.

        ``bounds``: (number of positions read before the step, number after it) for each row.
        """
        sums, tail = state
        size, count = self.chunk, z.shape[1]
        before, after = torch.tensor(bounds, device=z.device).view(-1, 2).unbind(1)
        steps = torch.arange(count, device=z.device)
        slots, first = (before % size)[:, None] + steps, before // size * size
        new = torch.cat((z, v), -1).masked_fill((steps >= (after - before)[:, None])[..., None], 0).to(tail.dtype)
        # The empty slots of the current chunk are 0; ``count`` empty slots are appended for the next chunk.
        tokens = F.pad(tail, (0, 0, 0, count)).scatter(1, slots[..., None].expand_as(new), new)
        old_z, old_v = tokens.split((self.key_dim, self.hidden), -1)
        there = first[:, None] + torch.arange(size + count, device=z.device)
        keys = ops.Maps(*self.gated.maps(old_z, there))
        maps = ops.Maps(*self.gated.maps(z, before[:, None] + steps))
        out = ops.step(maps, keys, old_v, sums, slots, first, size)
        tail = tokens[:, :size].clone()
        if any(one // size != other // size for one, other in bounds):
            complete = (after // size > before // size)[:, None, None]
            sums = sums + (keys.far_key[:, :size].mT @ old_v[:, :size]).where(complete, 0.0).to(sums.dtype)
            tail = F.pad(tokens[:, size:], (0, 0, 0, size - count)).where(complete, tail)
        return out, (sums, tail)

    def state_bytes(self, length: int, batch: int = 1) -> int:
        if not self.causal:
            return 0
        values = self.key_dim * self.hidden + self.chunk * (self.key_dim + self.hidden)
        return batch * values * self.output.weight.element_size()

    def ending(self) -> nn.Module:
        return self.output
