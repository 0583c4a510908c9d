"""Named faults. Each is put into the package for the length of a ``with`` block, and the battery must then fail.

A fault that no check notices would mean that the battery does not say what it seems to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

from qkv.layers import memory_layer, relative, residuals
from qkv.layers.context import Context, Memory
from qkv.mixers import (
    additive_attention,
    attention,
    convolution,
    cross_attention,
    fixed_context,
    linear_attention,
    recurrent,
    token_shift,
)
from qkv.models import block, heads, transformer
from qkv.ops import masks, positions
from qkv.ops.linear_attention import chunked
from qkv.spec import masks as mask_spec
from qkv.state import kinds, tree

Fault = Callable[[], AbstractContextManager[Any]]


class Mutant(NamedTuple):
    """A fault and the subjects that must notice it: kinds of branches, "stack", or a group of samples."""

    name: str
    subjects: tuple[str, ...]
    fault: Fault


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
    """Windows and causal parts inside every mask changed, for the predicate alone; the state is laid out for the right one."""

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


def strictly_before(_: Any) -> Any:
    return lambda self, grid: grid.key < grid.query


def forgetful(original: Any) -> Any:
    """Nothing is written."""
    return lambda state, *args, **kwargs: state


def one_leaf_forgotten(original: Any) -> Any:
    """The last leaf keeps its rows."""

    def rows(state: Any, index: Any) -> Any:
        leaves = list(tree.tensors(state))
        kept = leaves[-1]
        moved = iter(original(leaf, index) if leaf is not kept else kept for leaf in leaves)
        return tree.map_tensors(lambda _: next(moved), state)

    return rows


def not_copied(original: Any) -> Any:
    """Rows in their own order share memory with the state that they come from."""

    def rows(state: Any, index: Any) -> Any:
        same = all(torch.as_tensor(index).tolist() == list(range(leaf.shape[0])) for leaf in tree.tensors(state))
        return state if same else original(state, index)

    return rows


def grown_empty(original: Any) -> Any:
    def grown(state: kinds.KeyValue, needed: int, limit: int | None) -> kinds.KeyValue:
        after = original(state, needed, limit)
        return after if after is state else kinds.KeyValue(*(torch.zeros_like(t) for t in after))

    return grown


def grown_by_one(original: Any) -> Any:
    def grown(state: kinds.KeyValue, needed: int, limit: int | None) -> kinds.KeyValue:
        more = needed - state.keys.shape[2]
        return state if more <= 0 else kinds.KeyValue(*(F.pad(t, (0, 0, 0, more)) for t in state))

    return grown


def grown_uninitialised(original: Any) -> Any:
    """The new room is not cleared: the poison of the test suite must come through."""

    def grown(state: kinds.KeyValue, needed: int, limit: int | None) -> kinds.KeyValue:
        after = original(state, needed, limit)
        if after is state:
            return state
        held = state.keys.shape[2]
        return kinds.KeyValue(*(torch.cat((t[:, :, :held], torch.empty_like(t[:, :, held:])), 2) for t in after))

    return grown


def relative_rotation(original: Any) -> Any:
    """Positions counted from the beginning of each call."""

    def rotation(self: Any, rope: Any, context: Context) -> Any:
        return original(self, rope, replace(context, positions=torch.arange(context.positions.shape[1])[None]))

    return rotation


def clipped_early(original: Any) -> Any:
    """The table is read as if it were one distance shorter on each side."""
    return lambda query, key, reach: original(query, key, reach - 1) + 1


def keys_from_zero(original: Any) -> Any:
    """Keys numbered by their slot, whatever position it holds."""

    def added(self: Any, q: Tensor, sites: masks.Sites, scale: float) -> Tensor:
        return original(self, q, replace(sites, key=torch.arange(sites.key.shape[1])[None]), scale)

    return added


def last_key_lost(original: Any) -> Any:
    """The last key of each chunk does not reach the sums."""

    def whole(q: Tensor, k: Tensor, v: Tensor, state: Any, valid: Any) -> Any:
        out, _ = original(q, k, v, state, valid)
        part = None if valid is None else valid[:, :-1]
        return out, original(q[:, :, :-1], k[:, :, :-1], v[:, :, :-1], state, part)[1]

    return whole


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


def position_one_late(original: Any) -> Any:
    """Where there is a state, every position is counted one too high."""

    def context(self: Any, ids: Tensor, state: Any, *rest: Any) -> Context:
        found = original(self, ids, state, *rest)
        return found if state is None else replace(found, positions=found.positions + 1)

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


def without_cap(head: Any) -> Any:
    head.cap = None
    return head


def without_scale(frontend: Any) -> Any:
    frontend.scale = 1.0
    return frontend


def padding_counted(original: Any) -> Any:
    def features(self: Any, ids: Tensor, state: Any = None, *rest: Any, **given: Any) -> Any:
        x, after = original(self, ids, state, *rest, **given)
        return x, after if state is None else after._replace(positions=state.positions + ids.shape[1])

    return features


def documents_run_on(segments: Tensor) -> Tensor:
    return torch.arange(segments.shape[1]).expand_as(segments)


def saved_exchanged(original: Any) -> Any:
    """The last two leaves change places."""

    def save(state: Any, path: Any) -> None:
        *rest, a, b = tree.tensors(state)
        original((*rest, b, a), path)

    return save


def problem(change: Callable[[Any], Any]) -> Fault:
    return result(attention, "Problem", change)


def whole_memory(original: Any) -> Any:
    """The padding of a memory counts as real."""
    return staticmethod(lambda known, context: original(known._replace(lengths=known.lengths * 0 + known.keys.shape[2]), context))


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
        masks.Prefix, "allowed", lambda _: lambda self, grid: allowed(grid.prefix if self.length is None else self.length, grid.key)
    )


def nothing(_: Any) -> None:
    return None


def without_segments(owner: Any) -> Fault:
    return argument(owner, "forward", 2, lambda context: replace(context, segments=None))


def without_lengths(owner: Any) -> Fault:
    return argument(owner, "forward", 2, lambda context: replace(context, lengths=None))


ATTENTION, LEARNED, LINEAR, SHIFT, CONVOLUTION, RECURRENT, TWO_WAY, CROSS, ADDITIVE, FIXED, FORM = (
    ("attention",),
    ("learned distances",),
    ("linear_attention",),
    ("token_shift",),
    ("causal_convolution",),
    ("rnn", "gru", "lstm"),
    ("bidirectional",),
    ("cross_attention",),
    ("additive_attention",),
    ("fixed_context",),
    ("form",),
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant("mask dropped", ATTENTION, mask_changed(lambda mask: mask_spec.Full())),
    Mutant("a position does not see itself", ATTENTION, instead(masks.Causal, "allowed", strictly_before)),
    Mutant("scale dropped", ATTENTION, problem(lambda p: replace(p, scale=1.0))),
    Mutant("scale by the model's width, not the head's", ATTENTION, problem(lambda p: replace(p, scale=0.25))),
    Mutant("window one too wide", ATTENTION, mask_changed(wider)),
    Mutant("window one too wide in mask and state", ATTENTION, window_wider_in_mask_and_ring),
    Mutant("window one too narrow", ATTENTION, mask_changed(narrower)),
    Mutant("sinks dropped", ATTENTION, mask_changed(without_sinks)),
    Mutant("key and value not written", ATTENTION, instead(attention, "append", forgetful)),
    Mutant("ring not written", ATTENTION, instead(attention, "append_ring", forgetful)),
    Mutant("ring read one slot off", ATTENTION, result(attention, "ring_positions", lambda held: held.roll(1, 1))),
    Mutant("past off by one", ATTENTION, result(attention, "arrival", lambda a: a._replace(past=a.past + 1, start=None, end=a.end + 1))),
    Mutant("lengths ignored in the ring", ATTENTION, argument(attention, "append_ring", 3, lambda a: a._replace(lengths=None))),
    Mutant("grown buffer empty", ATTENTION, instead(kinds, "_grown", grown_empty)),
    Mutant("grown buffer not cleared", ATTENTION, instead(kinds, "_grown", grown_uninitialised)),
    Mutant("growth by one", ATTENTION, instead(kinds, "_grown", grown_by_one)),
    Mutant("RoPE by position in the call", ATTENTION, instead(attention.Attention, "_rotation", relative_rotation)),
    Mutant(
        "RoPE turned for keys only", ATTENTION, instead(positions, "rotate", lambda f: lambda x, c, s: f(x, c, s) if x.shape[1] < 4 else x)
    ),
    Mutant("RoPE pairs neighbours", ATTENTION, instead(positions, "rotation", lambda f: lambda p, θ, m=1.0: f(p, θ.flip(0), m))),
    Mutant("ALiBi rewards distance", ATTENTION, result(positions, "alibi_slopes", torch.neg)),
    Mutant("ALiBi heads reversed", ATTENTION, result(positions, "alibi_slopes", lambda m: m.flip(0))),
    Mutant("K/V heads of the wrong group", ATTENTION, argument(attention, "attention", 1, lambda k: k.roll(1, 1))),
    Mutant("top k keeps one more", ("top k",), problem(lambda p: replace(p, top_k=p.top_k and p.top_k + 1))),
    Mutant("top k keeps all", ("top k",), problem(lambda p: replace(p, top_k=None))),
    Mutant("distances turned round", LEARNED, instead(relative, "clipped_distances", lambda f: lambda i, j, reach: f(-i, -j, reach))),
    Mutant("distances clipped one too early", LEARNED, instead(relative, "clipped_distances", clipped_early)),
    Mutant("relative keys not scaled", LEARNED, argument(relative.Shaw, "added", 3, lambda scale: 1.0)),
    Mutant("relative values dropped", LEARNED, result(relative.Shaw, "values", nothing)),
    Mutant("what is added dropped", LEARNED, problem(lambda p: replace(p, added=None))),
    Mutant("buckets of two directions in causal attention", LEARNED, argument(relative, "distance_buckets", 3, lambda causal: False)),
    Mutant("buckets of the distance ahead", LEARNED, argument(relative, "distance_buckets", 0, torch.neg)),
    Mutant("positions of keys counted from the window", LEARNED, instead(relative.T5Buckets, "added", keys_from_zero)),
    Mutant("documents leak in attention", ATTENTION, without_segments(attention.Attention)),
    Mutant("state bytes without the values", ATTENTION, result(attention.Attention, "state_bytes", lambda n: n // 2)),
    Mutant("chunk border: last key lost", LINEAR, instead(chunked, "whole", last_key_lost)),
    Mutant("sums not carried over", LINEAR, argument(chunked, "whole", 3, lambda state: tuple(torch.zeros_like(t) for t in state))),
    Mutant("feature map elu + 2", LINEAR, result(linear_attention, "feature", lambda x: x + 1)),
    Mutant("lengths ignored in the sums", LINEAR, argument(chunked, "whole", 4, nothing)),
    Mutant("documents leak in linear attention", LINEAR, without_segments(linear_attention.LinearAttention)),
    Mutant("convolution tail shifted", CONVOLUTION, instead(convolution, "extended", tail_one_early)),
    Mutant("lengths ignored in the tail", CONVOLUTION, argument(convolution, "extended", 2, nothing)),
    Mutant("dilation ignored", CONVOLUTION, argument(convolution, "taps", 2, lambda dilation: 1)),
    Mutant("taps in reverse", CONVOLUTION, result(convolution, "taps", lambda t: t.flip(-1))),
    Mutant("documents leak in the convolution", CONVOLUTION, argument(convolution, "taps", 3, nothing)),
    Mutant("shift tail shifted", SHIFT, instead(token_shift, "extended", tail_one_early)),
    Mutant("lengths ignored in the shift", SHIFT, argument(token_shift, "extended", 2, nothing)),
    Mutant("documents leak in the shift", SHIFT, without_segments(token_shift.TokenShift)),
    Mutant("recurrent gates swapped", ("gru", "lstm"), argument(recurrent, "recur", 3, gates_swapped)),
    Mutant("GRU update inverted", ("gru",), argument(recurrent, "recur", 3, update_inverted)),
    Mutant("the recurrence begins anew at each call", RECURRENT, argument(recurrent, "recur", 2, all_empty)),
    Mutant("LSTM cells begin anew at each call", ("lstm",), argument(recurrent, "recur", 2, memory_lost)),
    Mutant("documents leak in the recurrence", RECURRENT, argument(recurrent, "recur", 4, nothing)),
    Mutant("lengths ignored in the hidden state", RECURRENT, argument(recurrent, "recur", 5, nothing)),
    Mutant("convolution reads the padding", TWO_WAY, without_lengths(convolution.Convolution)),
    Mutant("documents leak in the two-sided convolution", TWO_WAY, argument(convolution, "taps", 3, nothing)),
    Mutant("convolution off centre", TWO_WAY, argument(convolution.F, "pad", 1, lambda pad: (*pad[:2], pad[3], pad[2]))),
    Mutant("keys of another slot", ("memory_layer",), argument(memory_layer, "memory", 1, lambda keys: keys.roll(1, 1))),
    Mutant("memory's scale dropped", ("memory_layer",), argument(memory_layer, "memory", 0, lambda q: q * q.shape[-1] ** 0.5)),
    Mutant("backward from the end of the padding", TWO_WAY, argument(recurrent, "reversal", 1, nothing)),
    Mutant("backward direction goes forward", TWO_WAY, result(recurrent, "reversal", lambda index: index.sort(1).values)),
    Mutant("documents leak backward", TWO_WAY, argument(recurrent, "recur", 4, nothing)),
    Mutant("rows() forgets one leaf", (*ATTENTION, *LINEAR), instead(tree, "rows", one_leaf_forgotten)),
    Mutant("rows() shares memory", ATTENTION, instead(tree, "rows", not_copied)),
    Mutant("keys and values exchanged in the file", ATTENTION, instead(tree, "save", saved_exchanged)),
    Mutant("positions off by one", ("stack",), instead(transformer.Transformer, "_going_on", position_one_late)),
    Mutant("padding counted as positions", ("stack",), instead(transformer.Transformer, "features", padding_counted)),
    Mutant("positions do not restart in a document", ("stack",), instead(transformer, "_restarted", lambda _: documents_run_on)),
    Mutant("fixed capacity not kept", ("stack",), result(transformer.Transformer, "init_state", lambda s: s._replace(limit=s.limit * 0))),
    Mutant("rewind does nothing", ("stack",), argument(transformer.Transformer, "rewind", 2, torch.zeros_like)),
    Mutant(
        "norm after the branch where it belongs before", ("stack",), instead(block.PreNorm, "forward", lambda _: block.PostNorm.forward)
    ),
    Mutant("sandwich without its second norm", ("stack",), instead(block.Sandwich, "forward", lambda _: block.PreNorm.forward)),
    Mutant("residual dropped", ("stack",), instead(residuals.Residual, "joined", lambda _: lambda self, x, y: y)),
    Mutant("parallel branches in sequence", ("stack",), instead(block.Block, "forward", in_sequence)),
    Mutant("soft cap dropped", ("stack",), result(heads, "LanguageModelHead", without_cap)),
    Mutant("token vectors not scaled", ("stack",), result(transformer, "TextFrontend", without_scale)),
    Mutant("lengths of the memory ignored in cross-attention", CROSS, instead(cross_attention.CrossAttention, "_sites", whole_memory)),
    Mutant("memory seen up to the query's own position", CROSS, instead(cross_attention, "Full", lambda _: masks.Causal)),
    Mutant("scale dropped in cross-attention", CROSS, result(cross_attention, "Problem", lambda p: replace(p, scale=1.0))),
    Mutant("values of the next vector of the memory", CROSS, argument(cross_attention, "attention", 2, lambda v: v.roll(1, 2))),
    Mutant("memory's heads of the wrong group", CROSS, argument(cross_attention, "attention", 1, lambda k: k.roll(1, 1))),
    Mutant("lengths of the memory ignored in additive attention", ADDITIVE, argument(additive_attention, "additive_weights", 4, nothing)),
    Mutant("additive scores without the query", ADDITIVE, argument(additive_attention, "additive_weights", 0, torch.zeros_like)),
    Mutant("lengths of the memory ignored in the fixed context", FIXED, argument(fixed_context, "pooled", 1, nothing)),
    Mutant("fixed context of one vector less", FIXED, argument(fixed_context, "pooled", 1, lambda lengths: lengths - 1)),
    Mutant("every layer reads the first layer's memory", FORM, memory_of(lambda i, count: 0)),
    Mutant("every layer reads the last layer's memory", FORM, memory_of(lambda i, count: count - 1)),
    Mutant("layers read the memory of the one before", FORM, memory_of(lambda i, count: max(i - 1, 0))),
    Mutant("encoder reads its padding", FORM, argument(transformer.Encoder, "forward", 2, nothing)),
    Mutant("memory not normed", FORM, instead(transformer.Encoder, "forward", not_normed)),
    Mutant("prefix dropped", FORM, prefix_seen(lambda length, key: key < 0)),
    Mutant("prefix one too long", FORM, prefix_seen(lambda length, key: key <= length)),
    Mutant("prefix one too short", FORM, prefix_seen(lambda length, key: key < length - 1)),
    Mutant(
        "prefix forgotten where there is a state", FORM, result(transformer.Transformer, "_going_on", lambda c: replace(c, prefix=None))
    ),
    Mutant("decoder sees later positions", FORM, mask_changed(lambda mask: mask_spec.Full())),
    Mutant("every state may be rewound", ("stack",), lambda: patch.object(transformer.Transformer, "rewindable", True)),
)
