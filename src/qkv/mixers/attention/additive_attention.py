"""Additive (Bahdanau) attention to an encoder's output."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from qkv.layers.branch import MemoryBranch, State
from qkv.layers.context import Context, Memory
from qkv.layers.linear.linear import Linear
from qkv.layers.observable import Points, standard
from qkv.ops.additive_attention.choose import additive_keys, additive_weights
from qkv.spec.models import cross as spec
from qkv.spec.register import implements


class AdditiveMemory(NamedTuple):
    """State of additive attention: keys W_k m (B, M, A), memory m (B, M, Dm), number of unpadded vectors (B)."""

    keys: Tensor
    vectors: Tensor
    lengths: Tensor


@implements(spec.AdditiveAttention)
class AdditiveAttention(MemoryBranch):
    """Additive attention: W_o Σ_j P_ij m_j + b, P = softmax_j(v · tanh(W_q x_i + W_k m_j)) (Bahdanau et al. 2015).

        x (B, N, D) ─ query ───── (B, N, A) ─┐
        m (B, M, Dm) ┬─ memory ── (B, M, A) ─┴ tanh ─ score ─ softmax ─ P (B, N, M) ─┐
                     └───────────────────────────────────────── Σ_j P_ij m_j (B, N, Dm) ─ output ─ (B, N, D)

    Dm is the memory's width, by default D. State (read-only): projected memory, memory, lengths. A row with an empty
    memory gives b. The paper feeds the sum into the next step of the recurrent cell. Here the sum is added to the
    residual stream, and the recurrent cell is the branch before.
    """

    def __init__(self, part: spec.AdditiveAttention, width: int, memory_width: int | None = None):
        super().__init__(part, width)
        hidden = part.hidden or width
        self.query = Linear(width, hidden, bias=False)
        self.memory = Linear(memory_width or width, hidden, bias=False)
        self.score = Linear(hidden, 1, bias=False)
        self.output = Linear(memory_width or width, width)

    def points(self) -> Points:
        return standard("weights")

    def remember(self, memory: Memory) -> AdditiveMemory:
        vectors, _ = memory.grid()
        return AdditiveMemory(additive_keys(vectors, self.memory.weight), vectors, memory.lengths)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        memory = self.memory_state(context, state)
        weights = self.offer(context.tap, "weights", self._weights(x, memory)[:, None])[:, 0]
        return self.output(weights @ memory.vectors), state

    def _weights(self, x: Tensor, memory: AdditiveMemory) -> Tensor:
        """Compute attention weights P (B, N, M) of positions x (B, N, D) over the memory, in the memory's dtype."""
        p = additive_weights(x, memory.keys, self.query.weight, self.score.weight[0], memory.lengths)
        return p.to(memory.vectors.dtype)

    def ending(self) -> nn.Module:
        return self.output
