"""States that go from rank to rank: recurrences, linear attention and convolutions on rows that ranks share.

By the state contract, a causal branch reads a row in pieces and passes its state on. Here each chunk of a row is a
piece: the rank that holds chunk i receives the state after chunk i - 1, reads its chunk, and sends the state on. In the
backward pass the gradient of the state goes the other way. Ranks wait for each other, so that a pass takes as long as
on one process, in the memory of a part of the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.parallel.context.layout import RankLayout
from qkv.parallel.context.ranks import Ranks
from qkv.state import tree
from qkv.state.arrival import Arrival, Counts


class Handed(NamedTuple):
    """State between two chunks.

    past: number of positions that the state of each row holds. segment (B): document that it is in; None without
    documents.
    """

    past: Counts
    segment: Tensor | None
    state: State


class Relay:
    """Calls of a branch on rows that ranks share, (branch, x (B, N / R, D), context) -> (B, N / R, D)."""

    def __init__(self, ranks: Ranks, layout: RankLayout):
        self.ranks, self.layout = ranks, layout

    def __call__(self, branch: Branch, x: Tensor, context: Context) -> Tensor:
        """Compute the output of this rank's positions, which equals that of one call with the whole rows."""
        parameters = tuple(p for p in branch.parameters() if p.requires_grad)
        return _Relayed.apply((self, branch, torch.is_grad_enabled()), context, x, *parameters)  # type: ignore[no-any-return]

    def chunks(self, count: int) -> Iterator[tuple[int, slice]]:
        """Yield (number of the chunk in the row, its place among this rank's ``count`` positions), in order."""
        mine = self.layout.of_rank(self.ranks.rank)
        size = count // len(mine)
        for i, chunk in enumerate(mine):
            yield chunk, slice(i * size, (i + 1) * size)

    def neighbour(self, chunk: int) -> int | None:
        """Return the other rank that holds ``chunk``; None if it is this one, or if there is no such chunk."""
        if not 0 <= chunk < self.layout.chunks:
            return None
        rank = self.layout.rank_of(chunk)
        return None if rank == self.ranks.rank else rank

    def send(self, handed: Handed, to: int, device: torch.device) -> None:
        """Send what the next chunk needs to rank ``to``: its form, then its tensors."""
        leaves = list(tree.tensors(handed.state))
        form = tree.map_tensors(lambda t: torch.empty(t.shape, dtype=t.dtype, device="meta"), handed.state)
        segment = None if handed.segment is None else handed.segment.cpu()
        self.ranks.send_value((tuple(handed.past), segment, form), to, device)
        self.ranks.send([t.detach() for t in leaves], to)

    def receive(self, source: int, device: torch.device) -> Handed:
        """Receive what ``send`` of rank ``source`` sent."""
        past, segment, form = self.ranks.receive_value(source, device)
        received = iter(self.ranks.receive(list(tree.tensors(form)), source, device))
        return Handed(Counts(past), segment, tree.map_tensors(lambda _: next(received), form))


class _Piece(NamedTuple):
    """A chunk that was read: its graph from ``leaves`` (x, tensors of the state) to ``ends`` (y, those of the next)."""

    chunk: int
    leaves: list[Tensor]
    ends: list[Tensor]


class _Relayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, how: tuple[Relay, Branch, bool], context: Context, x: Tensor, *parameters: Tensor) -> Tensor:
        relay, branch, recorded = how
        ctx.relay, ctx.parameters, ctx.pieces = relay, parameters, list[_Piece]()
        outputs = list[Tensor]()
        handed: Handed | None = None
        for chunk, where in relay.chunks(x.shape[1]):
            source = relay.neighbour(chunk - 1)
            if chunk == 0:
                handed = Handed(Counts((0,) * x.shape[0]), None, branch.init_state(x.shape[0]))
            elif source is not None:
                handed = relay.receive(source, x.device)
            assert handed is not None
            with torch.set_grad_enabled(recorded):
                piece, y, handed = _read(branch, x[:, where], _part(context, where), handed, chunk)
            outputs.append(y.detach())
            if recorded:
                ctx.pieces.append(piece)
            to = relay.neighbour(chunk + 1)
            if to is not None:
                relay.send(handed, to, x.device)
        return torch.cat(outputs, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        relay: Relay = ctx.relay
        parts = grads[0].chunk(len(ctx.pieces), 1)
        of_x, totals = list[Tensor](), [torch.zeros_like(p) for p in ctx.parameters]
        after: list[Tensor] | None = None
        for piece, grad in zip(reversed(ctx.pieces), reversed(parts), strict=True):
            to = relay.neighbour(piece.chunk + 1)
            if to is not None:
                after = relay.ranks.receive(piece.ends[1:], to, grad.device)
            ends: list[tuple[Tensor, Tensor]] = list(zip(piece.ends, [grad, *(after or [])], strict=False))
            ends = [(end, of_end) for end, of_end in ends if end.requires_grad]
            inputs: list[Tensor] = [*piece.leaves, *ctx.parameters]
            computed = torch.autograd.grad(
                [end for end, _ in ends], inputs, [of_end for _, of_end in ends], allow_unused=True
            )
            of_leaves, more = computed[: len(piece.leaves)], computed[len(piece.leaves) :]
            filled = [torch.zeros_like(t) if g is None else g for t, g in zip(piece.leaves, of_leaves, strict=True)]
            of_x.append(filled[0])
            totals = [total if g is None else total + g for total, g in zip(totals, more, strict=True)]
            after, source = filled[1:], relay.neighbour(piece.chunk - 1)
            if source is not None:
                relay.ranks.send(after, source)
        return None, None, torch.cat(of_x[::-1], 1), *totals


def _read(branch: Branch, x: Tensor, context: Context, handed: Handed, chunk: int) -> tuple[_Piece, Tensor, Handed]:
    """Read a chunk x (B, n, D) after ``handed``; return (its graph, its outputs, what is handed on)."""
    leaves = [x.detach().requires_grad_()] if torch.is_grad_enabled() else [x]

    def leaf(t: Tensor) -> Tensor:
        if not (t.is_floating_point() and torch.is_grad_enabled()):
            return t.clone()
        leaves.append(t.detach().requires_grad_())
        return leaves[-1].clone()  # a store may write to it

    handed = handed._replace(state=tree.map_tensors(leaf, handed.state))
    outputs = list[Tensor]()
    for where, starting in _documents(context.segments, handed.segment):
        if starting is not None:
            handed = _restarted(branch, handed, starting)
        part = _following(_part(context, where), handed.past)
        y, state = branch(leaves[0][:, where], part, handed.state)
        assert part.arrival is not None
        segment = None if context.segments is None else context.segments[:, where.stop - 1]
        handed = Handed(part.arrival.after, segment, state)
        outputs.append(y)
    y = torch.cat(outputs, 1)
    ends = [t for t in tree.tensors(handed.state) if t.is_floating_point()]
    return _Piece(chunk, leaves, [y, *ends]), y, handed


def _documents(segments: Tensor | None, before: Tensor | None) -> Iterator[tuple[slice, Tensor | None]]:
    """Yield the pieces of a chunk in which no document begins but at their first position, and the rows (B) where one
    does.

    segments (B, n): documents of the chunk; before (B): the document that ends before it.
    """
    if segments is None:
        yield slice(0, None), None
        return
    first = segments[:, :1] if before is None else before.to(segments.device)[:, None]
    starts = segments != torch.cat((first, segments[:, :-1]), 1)
    borders = sorted({0, *starts.any(0).nonzero()[:, 0].tolist(), segments.shape[1]})
    for begin, end in pairwise(borders):
        yield slice(begin, end), starts[:, begin]


def _restarted(branch: Branch, handed: Handed, rows: Tensor) -> Handed:
    """Give the ``rows`` (B, True) the state before any position."""
    if not bool(rows.any()):
        return handed
    count = len(handed.past)
    index = [count + row if restarts else row for row, restarts in enumerate(rows.tolist())]
    state = tree.rows(tree.join(handed.state, branch.init_state(count)), index)
    past = Counts(0 if restarts else n for n, restarts in zip(handed.past, rows.tolist(), strict=True))
    return handed._replace(past=past, state=state)


def _part(context: Context, where: slice) -> Context:
    """Return the context of some of its positions."""
    length = context.positions.shape[1]
    begin, end, _ = where.indices(length)
    lengths = None if context.lengths is None else (context.lengths - begin).clamp(0, end - begin)
    segments, types = (None if t is None else t[:, where] for t in (context.segments, context.types))
    return replace(
        context, positions=context.positions[:, where], lengths=lengths, segments=segments, types=types, memo={}
    )


def _following(context: Context, past: Counts) -> Context:
    """Return the context of positions that follow ``past``, in a call with a state."""
    arrival = Arrival(past, context.positions.shape[1], context.lengths, context.positions.device)
    return replace(context, arrival=arrival, positions=arrival.positions, segments=None)
