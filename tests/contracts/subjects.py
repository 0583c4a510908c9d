"""What is under test, a single branch or a whole stack, behind one face: ``whole`` at once, ``call`` with a state."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from tests.contracts.samples import VOCABULARY, WIDTH
from torch import Tensor, nn

from qkv.layers.context import Context
from qkv.layers.norms import BatchNorm
from qkv.mixers.registry import build_branch
from qkv.models.build import build
from qkv.spec.branches import Branch
from qkv.spec.model import Model


class Counted(NamedTuple):
    """A branch's state with the count that its stack would keep."""

    positions: Tensor
    inner: Any


class Subject:
    """Float64 by default, so that agreement can be asked for to the last digits."""

    module: nn.Module
    rewindable: bool

    def inputs(self, batch: int, length: int, seed: int = 0) -> Tensor:
        """(B, N, D) or ids (B, N)."""
        raise NotImplementedError

    def whole(self, x: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def start(self, batch: int, capacity: int | None = None) -> Any:
        raise NotImplementedError

    def call(self, x: Tensor, state: Any, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        raise NotImplementedError

    def rewind(self, state: Any, lengths: Tensor) -> Any:
        raise NotImplementedError

    def remembered(self, state: Any) -> Any:
        """What ``state_bytes`` speaks of."""
        raise NotImplementedError

    def state_bytes(self, length: int, batch: int) -> int:
        return self.module.state_bytes(length, batch)  # type: ignore[operator]


class OneBranch(Subject):
    """A branch, its contexts written by hand: an oracle for the stack that writes them otherwise."""

    def __init__(self, part: Branch, dtype: torch.dtype = torch.float64):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.module = scrambled(build_branch(part, WIDTH), dtype)
        self.part, self.dtype, self.rewindable = part, dtype, self.module.rewindable

    def inputs(self, batch: int, length: int, seed: int = 0) -> Tensor:
        return torch.randn(batch, length, WIDTH, dtype=self.dtype, generator=torch.Generator().manual_seed(seed))

    def whole(self, x: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        positions = torch.arange(x.shape[1])[None]
        if segments is not None:
            positions = torch.tensor([[row[:i].count(row[i]) for i in range(len(row))] for row in segments.tolist()])
        return self.module(x, Context(positions, lengths, segments, end=x.shape[1]))[0]

    def start(self, batch: int, capacity: int | None = None) -> Counted:
        return Counted(torch.zeros(batch, dtype=torch.long), self.module.init_state(batch, capacity))

    def call(self, x: Tensor, state: Counted, lengths: Tensor | None = None) -> tuple[Tensor, Counted]:
        past, count = state.positions, x.shape[1]
        came = torch.full_like(past, count) if lengths is None else lengths
        end = int((past + came).max())
        level = lengths is None and past.unique().numel() == 1
        context = Context(past[:, None] + torch.arange(count), lengths, None, past, int(past[0]) if level else None, end)
        y, inner = self.module(x, context, state.inner)
        return y, Counted(past + came, inner)

    def rewind(self, state: Counted, lengths: Tensor) -> Counted:
        return state._replace(positions=lengths)

    def remembered(self, state: Counted) -> Any:
        return state.inner


class Stack(Subject):
    """A whole model; inputs are ids, outputs logits."""

    def __init__(self, spec: Model, dtype: torch.dtype = torch.float64):
        self.module = scrambled(build(spec), dtype)
        self.rewindable = self.module.rewindable

    def inputs(self, batch: int, length: int, seed: int = 0) -> Tensor:
        return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))

    def whole(self, x: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        return self.module(x, lengths=lengths, segments=segments)[0]

    def start(self, batch: int, capacity: int | None = None) -> Any:
        return self.module.init_state(batch, capacity)

    def call(self, x: Tensor, state: Any, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        return self.module(x, state, lengths)

    def rewind(self, state: Any, lengths: Tensor) -> Any:
        return self.module.rewind(state, lengths)

    def remembered(self, state: Any) -> Any:
        return state.blocks


def scrambled(module: nn.Module, dtype: torch.dtype) -> Any:
    """Weights and running statistics away from their special initial values (0 and 1), so that each of them matters."""
    generator = torch.Generator().manual_seed(11)
    for p in module.parameters():
        noise = torch.randn(p.shape, generator=generator)
        p.data += noise * (p.shape[-1] ** -0.5 if p.dim() > 1 else 0.3)
    for norm in module.modules():
        if isinstance(norm, BatchNorm):
            norm.running_mean.normal_(generator=generator)
            norm.running_var.uniform_(0.5, 2.0, generator=generator)
    return module.to(dtype).eval()
