"""Fixed context: one pooled memory vector, added at every position."""

from __future__ import annotations

from torch import Tensor, nn

from qkv.layers.branch import MemoryBranch, State
from qkv.layers.context import Context, Memory
from qkv.layers.linear.linear import Linear
from qkv.layers.pooling import pooled
from qkv.spec.models import cross as spec
from qkv.spec.register import implements


@implements(spec.FixedContext)
class FixedContext(MemoryBranch):
    """Pooled memory at every position: W c + b with c (B, Dm); Dm is by default D (Cho et al. 2014). State: c."""

    def __init__(self, part: spec.FixedContext, width: int, memory_width: int | None = None):
        super().__init__(part, width)
        self.part = part
        self.output = Linear(memory_width or width, width)

    def remember(self, memory: Memory) -> Tensor:
        vectors, _ = memory.grid()
        return pooled(vectors, memory.lengths, self.part.pooling)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        return self.output(self.memory_state(context, state))[:, None].expand_as(x), state

    def ending(self) -> nn.Module:
        return self.output
