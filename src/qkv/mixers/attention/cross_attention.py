"""Cross-attention: queries from the sequence, keys and values from an encoder's output."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv.layers.branch import MemoryBranch, State
from qkv.layers.context import Context, Memory
from qkv.layers.layout import Layouts, from_heads, matrix, vector
from qkv.layers.linear.linear import Linear
from qkv.layers.norms import build_norm
from qkv.layers.observable import Points, standard
from qkv.mixers.attention.attend import attend
from qkv.ops.attention.reference import AttentionProblem
from qkv.ops.masks import Full, Sites
from qkv.ops.selection.choices import by_reference
from qkv.spec.models import cross as spec
from qkv.spec.register import implements
from qkv.state.arrival import Counts


class MemoryKeys(NamedTuple):
    """Projected memory of cross-attention: keys (B, G, M, Dk), values (B, G, M, Dv), number of unpadded vectors (B).

    In a state the lengths are in host memory, so that no decoding step reads them from the device.
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor | Counts

    def is_full(self) -> bool:
        """True if no row of the memory is padded."""
        count, lengths = self.keys.shape[2], self.lengths
        if isinstance(lengths, Counts):
            return lengths.count(count) == len(lengths)
        # Tensors on the meta device have no values; assume no padding.
        return lengths.is_meta or (not by_reference() and bool((lengths == count).all()))


@implements(spec.CrossAttention)
class CrossAttention(MemoryBranch):
    """Cross-attention: concat_h(softmax(Q_h K_g^T / (τ √Dk)) V_g) W_o, Q = x W_q, K = m W_k, V = m W_v.

        x (B, N, D) ─ query ─── q (B, H, N, Dk) ─┐
        m (B, M, Dm) ─ memory ┬ k (B, G, M, Dk) ─┤ state: k, v, lengths
                              └ v (B, G, M, Dv) ─┴ attention ─ (B, N, H Dv) ─ output ─ (B, N, D)

    Vaswani et al. 2017. Dm is the memory's width, by default D. A row with an empty memory gives 0. The state is
    read-only. If values have a bias but keys do not, it is ``value_bias`` (G Dv), initialised to 0.
    """

    def __init__(self, part: spec.CrossAttention, width: int, memory_width: int | None = None):
        super().__init__(part, width)
        self.part = part
        self.head_dim, self.value_dim = part.dims(width)
        self.sizes = (part.kv_heads * self.head_dim, part.kv_heads * self.value_dim)
        self.query = Linear(width, part.num_heads * self.head_dim, bias=part.bias)
        self.memory = Linear(memory_width or width, sum(self.sizes), bias=part.bias and not part.biases_apart)
        self.value_bias = nn.Parameter(torch.zeros(self.sizes[1])) if part.biases_apart else None
        self.output = Linear(part.num_heads * self.value_dim, width, bias=part.ends_with_bias)
        self.query_norm = build_norm(part.qk_norm, self.head_dim) if part.norms_heads else None
        self.key_norm = build_norm(part.qk_norm, self.head_dim) if part.norms_heads else None
        self.scale = 1.0 / (part.temperature * self.head_dim**0.5)

    def layouts(self) -> Layouts:
        (k, v), heads = self.sizes, self.part.num_heads
        return {
            "query": matrix(q=(heads * self.head_dim, self.head_dim)),
            "memory": matrix(k=(k, self.head_dim), v=(v, self.value_dim)),
            "output": from_heads(heads * self.value_dim, self.value_dim),
            "value_bias": vector("v", v, self.value_dim),
        }

    def points(self) -> Points:
        read = {"k": "keys of the memory (B, G, M, Dk)", "v": "values of the memory (B, G, M, Dv)"}
        return {**standard("q"), **read, **standard("scores", "weights", "head_outputs")}

    def init_state(self, batch: int, capacity: int | None = None, memory: Memory | None = None) -> MemoryKeys:
        keys = super().init_state(batch, capacity, memory)
        assert memory is not None
        # Every step reads them, the native one only if they are contiguous.
        keys = keys._replace(keys=keys.keys.contiguous(), values=keys.values.contiguous())
        return keys if memory.lengths.is_meta else keys._replace(lengths=Counts.of(memory.lengths))

    def remember(self, memory: Memory) -> MemoryKeys:
        vectors, _ = memory.grid()
        k, v = self.memory(vectors).split(self.sizes, -1)
        v = v if self.value_bias is None else v + self.value_bias.to(v.dtype)
        k = k.unflatten(-1, (self.part.kv_heads, self.head_dim)).transpose(1, 2)
        v = v.unflatten(-1, (self.part.kv_heads, self.value_dim)).transpose(1, 2)
        return MemoryKeys(k if self.key_norm is None else self.key_norm(k, _NOWHERE), v, memory.lengths)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        keys = self.memory_state(context, state)
        projected = {"q": self._queries(x, context), "k": keys.keys, "v": keys.values}
        q, k, v = (self.offer(context.tap, name, value) for name, value in projected.items())
        out = attend(self, (q, k, v), self._problem(keys, context), context)
        out = self.offer(context.tap, "head_outputs", out)
        return self.output(out.transpose(1, 2).flatten(2)), state

    def _queries(self, x: Tensor, context: Context) -> Tensor:
        """Project x (B, N, D) to queries (B, H, N, Dk)."""
        q = self.query(x).unflatten(-1, (self.part.num_heads, self.head_dim)).transpose(1, 2)
        return q if self.query_norm is None else self.query_norm(q, context)

    def _problem(self, keys: MemoryKeys, context: Context) -> AttentionProblem:
        lengths = keys.lengths if isinstance(keys.lengths, Counts) else id(keys.lengths)
        sites = context.once(("memory", lengths, keys.keys.shape[2]), lambda: self._sites(keys, context))
        rate = self.part.dropout if self.training else 0.0
        return AttentionProblem(Full(), sites, self.scale, None, rate, softcap=self.part.softcap)

    @staticmethod
    def _sites(keys: MemoryKeys, context: Context) -> Sites:
        count = keys.keys.shape[2]
        steps = torch.arange(count, device=keys.keys.device)[None]
        if keys.is_full():
            return Sites(context.positions, steps, full=True)
        lengths = keys.lengths.tensor(steps.device) if isinstance(keys.lengths, Counts) else keys.lengths
        return Sites(context.positions, steps.masked_fill(steps >= lengths[:, None], -1))

    def state_bytes(self, length: int, batch: int = 1) -> int:
        return 0  # the state depends on the length of the memory, not of the sequence

    def ending(self) -> nn.Module:
        return self.output


_NOWHERE = Context(torch.zeros(1, 1, dtype=torch.long))
"""Dummy context: a norm of heads does not depend on positions."""
