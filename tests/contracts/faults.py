"""How a fault is put into the package for the length of a ``with`` block, and the faults that take more than a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.layers.context import Context, Memory
from qkv.mixers.attention import attention
from qkv.ops import masks
from qkv.spec import masks as mask_spec
from qkv.state import store, tree
from qkv.state.arrival import Arrival, Counts

Fault = Callable[[], AbstractContextManager[Any]]


def instead(owner: Any, name: str, make: Callable[[Any], Any]) -> Fault:
    """``make(original)`` in place of ``owner.name``."""
    return lambda: patch.object(owner, name, make(getattr(owner, name)))


def argument(owner: Any, name: str, place: int, change: Callable[[Any], Any]) -> Fault:
    """``owner.name`` called with one of its positional arguments changed."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            given = list(args)
            given[place] = change(given[place])
            return original(*given, **kwargs)

        return called

    return instead(owner, name, make)


def result(owner: Any, name: str, change: Callable[[Any], Any]) -> Fault:
    """``owner.name`` with its answer changed."""
    return instead(owner, name, lambda original: lambda *args, **kwargs: change(original(*args, **kwargs)))


def mask_changed(change: Callable[[mask_spec.Mask], mask_spec.Mask]) -> Fault:
    """Windows and causal parts inside every mask changed for the predicate alone; the state fits the right mask."""

    def deep(mask: mask_spec.Mask) -> mask_spec.Mask:
        if isinstance(mask, (mask_spec.AllOf, mask_spec.AnyOf)):
            return type(mask)(masks=tuple(deep(m) for m in mask.masks))
        return change(mask)

    return argument(attention, "build_mask", 0, deep)


def wider(mask: mask_spec.Mask) -> mask_spec.Mask:
    return mask.changed(size=mask.size + 1) if isinstance(mask, mask_spec.Window) else mask


def narrower(mask: mask_spec.Mask) -> mask_spec.Mask:
    return mask.changed(size=max(mask.size - 1, 1)) if isinstance(mask, mask_spec.Window) else mask


def without_sinks(mask: mask_spec.Mask) -> mask_spec.Mask:
    return mask.changed(sinks=0) if isinstance(mask, mask_spec.Window) else mask


@contextmanager
def window_wider_in_mask_and_ring() -> Iterator[None]:
    """Mask and state agree with each other on a window that is one too wide."""
    right = mask_spec.Window.reach.fget  # type: ignore[attr-defined]
    with mask_changed(wider)(), patch.object(mask_spec.Window, "reach", property(lambda self: right(self) + 1)):
        yield


def one_position_late(original: Any) -> Any:
    """Every query is one position later than it is."""

    def sites(problem: Any, num_heads: int) -> Any:
        found = original(problem, num_heads)
        return replace(found, query=found.query + 1, full=False)

    return sites


def strictly_before(_: Any) -> Any:
    return lambda self, grid: grid.key < grid.query


def forgetful(original: Any) -> Any:
    """Nothing is written."""
    return lambda *args: None


def one_later(arrival: Arrival) -> Arrival:
    """One position more before it."""
    return Arrival(Counts(n + 1 for n in arrival.past), arrival.count, arrival.lengths, arrival.device)


def arrived_late(context: Context) -> Context:
    """One position more before it, where there is a state."""
    return context if context.arrival is None else replace(context, arrival=one_later(context.arrival))


def unpadded(arrival: Arrival) -> Arrival:
    """Padding counts as real."""
    return Arrival(arrival.past, arrival.count, None, arrival.device)


def capacity_dropped(state: Any) -> Any:
    return state._replace(limit=Counts((0,) * len(state.limit)))


def memories_cut(original: Any) -> Any:
    """The longer of two tensors loses what the shorter has no room for."""

    def joined(first: Tensor, second: Tensor) -> Tensor:
        shape = [min(a, b) for a, b in zip(first.shape[1:], second.shape[1:], strict=True)]
        inside = (slice(None), *(slice(size) for size in shape))
        return torch.cat((first[inside], second[inside]))

    return joined


def one_leaf_forgotten(original: Any) -> Any:
    """The last leaf keeps its rows."""

    def rows(state: Any, index: Any) -> Any:
        held: list[Tensor] = []
        tree.map_tensors(lambda t: held.append(t) or t, state)
        kept = iter([*[None] * (len(held) - 1), held[-1]])
        return tree.map_tensors(lambda t: t if (last := next(kept)) is None else last, original(state, index))

    return rows


def not_copied(original: Any) -> Any:
    """Rows in their own order share memory with the state that they come from."""

    def rows(state: Any, index: Any) -> Any:
        same = all(torch.as_tensor(index).tolist() == list(range(leaf.shape[0])) for leaf in tree.tensors(state))
        return state if same else original(state, index)

    return rows


def grown_empty(original: Any) -> Any:
    def grow(self: store.Dense, needed: int) -> None:
        held = self.keys
        original(self, needed)
        if self.keys is not held:
            self.keys, self.values = torch.zeros_like(self.keys), torch.zeros_like(self.values)

    return grow


def grown_by_one(original: Any) -> Any:
    def grow(self: store.Dense, needed: int) -> None:
        more = needed - self.keys.shape[2]
        if more > 0:
            self.keys, self.values = (F.pad(t, (0, 0, 0, more)) for t in (self.keys, self.values))

    return grow


def grown_uninitialised(original: Any) -> Any:
    """The new room is not cleared: the poison of the test suite must come through."""

    def grow(self: store.Dense, needed: int) -> None:
        held = self.keys.shape[2]
        original(self, needed)
        if self.keys.shape[2] > held:
            self.keys, self.values = (
                torch.cat((t[:, :, :held], torch.empty_like(t[:, :, held:])), 2) for t in (self.keys, self.values)
            )

    return grow


def relative_rotation(original: Any) -> Any:
    """Positions counted from the beginning of each call."""

    def rotation(self: Any, context: Context, dtype: torch.dtype) -> Any:
        return original(self, replace(context, positions=torch.arange(context.positions.shape[1])[None]), dtype)

    return rotation


def clipped_early(original: Any) -> Any:
    """The table is read as if it were one distance shorter on each side."""
    return lambda query, key, reach: original(query, key, reach - 1) + 1


def keys_from_zero(original: Any) -> Any:
    """Keys numbered by their slot, whatever position it holds."""

    def added(self: Any, q: Tensor, sites: masks.Sites, scale: float, context: Any) -> Tensor:
        return original(self, q, replace(sites, key=torch.arange(sites.key.shape[1])[None]), scale, context)

    return added


def mean_of_all(original: Any) -> Any:
    """The mean of all values that are there, whatever the mask says."""
    return lambda v, problem: v.mean(2, keepdim=True).expand(-1, -1, problem.sites.query.shape[1], -1)


def equal_shares(original: Any) -> Any:
    """Attention to two sets of keys joined by the mean of the outputs where both have some."""

    def joined(first: Any, second: Any) -> Any:
        found, there = original(first, second), second.sums.isfinite()[..., None]
        return found._replace(outs=torch.where(there, (first.outs + second.outs) / 2, first.outs))

    return joined


def last_key_lost(original: Any) -> Any:
    """The last key does not reach the state."""

    def decayed(q: Tensor, k: Tensor, v: Tensor, decay: Any, state: Any, valid: Any, segments: Any, chunk: int) -> Any:
        out, _ = original(q, k, v, decay, state, valid, segments, chunk)
        k = torch.cat((k[:, :, :-1], torch.zeros_like(k[:, :, -1:])), 2)
        return out, original(q, k, v, decay, state, valid, segments, chunk)[1]

    return decayed


def not_forgotten(original: Any) -> Any:
    """What a chunk adds to the state does not decay until the chunk's end."""

    def decays(*args: Any) -> Any:
        found = original(*args)
        return found._replace(out=torch.ones_like(found.out))

    return decays


def one_head(original: Any) -> Any:
    """All heads have the random directions of the first."""

    def forward(self: Any, *args: Any) -> Any:
        given = self.directions
        self.directions = given[:1].expand_as(given)
        try:
            return original(self, *args)
        finally:
            self.directions = given

    return forward


def same_for_all(original: Any) -> Any:
    """Every earlier position is in the same document."""
    return lambda segments, back: torch.ones_like(segments, dtype=torch.bool)


def tail_one_early(original: Any) -> Any:
    def extended(tail: Tensor, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        window, after = original(tail, x, lengths)
        return window, torch.cat((tail[:, :1], after[:, :-1]), 1) if after.shape[1] else after

    return extended


def gates_swapped(weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The first two gates exchanged: reset and update, or what enters and what is kept."""
    gates = weights[1].shape[0] // weights[1].shape[1]
    return tuple(torch.cat((t.chunk(gates)[1], t.chunk(gates)[0], *t.chunk(gates)[2:])) for t in weights)


def update_inverted(weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """1 - z in place of z, as σ(-a) = 1 - σ(a)."""
    return tuple(torch.cat((t.chunk(3)[0], -t.chunk(3)[1], t.chunk(3)[2])) for t in weights)


def memory_lost(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """h alone reaches the next call."""
    return (state[0], *(torch.zeros_like(t) for t in state[1:]))


def all_empty(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.zeros_like(t) for t in state)


def all_real(bounds: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Every row has read as many new positions as the one with most of them."""
    most = max((after - before for before, after in bounds), default=0)
    return [(before, before + most) for before, _ in bounds]


def all_kept(fit: Any) -> Any:
    """Coefficients stay as they are."""
    return fit._replace(kept=torch.eye(len(fit.centres), dtype=fit.kept.dtype))


def from_zero(bounds: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Every row has read nothing before."""
    return [(0, after - before) for before, after in bounds]


def position_one_late(original: Any) -> Any:
    """Where there is a state, every position is counted one too high."""

    def context(self: Any, *args: Any) -> Context:
        found = original(self, *args)
        return replace(found, positions=found.positions + 1)

    return context


def in_sequence(_: Any) -> Any:
    """Each parallel branch reads what the one before it wrote."""

    def forward(self: Any, x: Tensor, context: Context, state: Any = None) -> Any:
        after = []
        for j, branch in enumerate(self.branches):
            read = x if self.norm is None else self.norm(x, context)
            y, kept = branch(read, context, None if state is None else state[j])
            x = y if self.norm is None else branch.residual(x, y)
            after.append(kept)
        return x, None if state is None else tuple(after)

    return forward


def averages_averaged(original: Any) -> Any:
    """Each average is kept in place of the output that it was made of."""

    def forward(self: Any, outputs: list[Tensor]) -> Tensor:
        outputs[-1] = original(self, outputs)
        return outputs[-1]

    return forward


def first_stream_alone(original: Any) -> Any:
    """Zeros in the second of two streams."""

    def entering(self: Any, x: Tensor) -> Tensor:
        return torch.cat((x, torch.zeros_like(x)), -1) if self.reversible else original(self, x)

    return entering


def without_cap(head: Any) -> Any:
    head.cap = None
    return head


def without_scale(original: Any) -> Any:
    """Token vectors are not multiplied by √D."""

    def forward(self: Any, signal: Any, context: Any) -> Any:
        with patch.object(self, "scale", 1.0):
            return original(self, signal, context)

    return forward


def padding_counted(original: Any) -> Any:
    def read(self: Any, signal: Any, state: Any, *rest: Any) -> Any:
        x, context, after = original(self, signal, state, *rest)
        return (
            x,
            context,
            after
            if state is None
            else after._replace(positions=Counts(n + signal.values.shape[1] for n in state.positions)),
        )

    return read


def documents_run_on(segments: Tensor) -> Tensor:
    return torch.arange(segments.shape[1]).expand_as(segments)


def saved_exchanged(original: Any) -> Any:
    """The last two leaves change places."""

    def save(state: Any, path: Any) -> None:
        *rest, a, b = tree.tensors(state)
        original((*rest, b, a), path)

    return save


def problem(change: Callable[[Any], Any]) -> Fault:
    return result(attention, "AttentionProblem", change)


def whole_memory(original: Any) -> Any:
    """The padding of a memory counts as real."""

    def sites(known: Any, context: Context) -> Any:
        return original(known._replace(lengths=torch.full((len(known.lengths),), known.keys.shape[2])), context)

    return staticmethod(sites)


def not_normed(original: Any) -> Any:
    """The encoder's final norm is left out."""

    def forward(self: Any, *args: Any) -> Any:
        with patch.object(type(self.norm), "forward", lambda norm, x, context: x):
            return original(self, *args)

    return forward


def memory_of(layer: Callable[[int, int], int]) -> Fault:
    """``layer(i, count)`` instead of what layer i of so many reads."""
    return instead(Memory, "of_layer", lambda f: lambda self, i: f(self, layer(i, len(self.vectors))))


def prefix_seen(allowed: Callable[[Any, Tensor], Tensor]) -> Fault:
    """``allowed(length, key)`` instead of what a prefix shows."""
    return instead(
        masks.Prefix,
        "allowed",
        lambda _: lambda self, grid: allowed(grid.prefix if self.length is None else self.length, grid.key),
    )


def unwritten(original: Any) -> Any:
    """The memory stays as it was."""
    return lambda self, memory, *args: memory


def one_nearer(original: Any) -> Any:
    """A mask of older keys that shows the oldest of the window."""
    return lambda distance: original(distance - 1)


def without_top_k(problem: Any) -> Any:
    return replace(problem, top_k=None)


def shifted_only(original: Any) -> Any:
    """The learned vector at the start of a patch is left out."""
    return lambda self, later: later


def of_the_second_half(original: Any) -> Any:
    """All rows are taken from the second of two joined states."""
    return lambda state, index: original(state, [len(index) + row for row in range(len(index))])


def nothing(_: Any) -> None:
    return None


def without_segments(owner: Any) -> Fault:
    return argument(owner, "forward", 2, lambda context: replace(context, segments=None))


def without_lengths(owner: Any) -> Fault:
    return argument(owner, "forward", 2, lambda context: replace(context, lengths=None))
