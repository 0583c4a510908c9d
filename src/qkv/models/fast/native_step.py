"""Decoding of a few new positions by the native library, for stacks whose parts it all supports.

It supports pre-norm blocks of causal attention (any number of key/value heads, RoPE), cross-attention and plain or
gated feed-forward layers. Weights are in fp32, also with a low-rank adapter whose scale is 1, or quantised. Other
stacks, and calls with a tap, gradients or hooks, run module by module. See ``qkv.ops.native.step``.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from qkv.layers import norms, relative
from qkv.layers.context import Context
from qkv.layers.linear.linear import Linear
from qkv.layers.linear.lora import LowRank
from qkv.layers.linear.quantized import QuantizedLinear, QuantizedTable
from qkv.layers.position_wise.feed_forward import FeedForward, GatedFeedForward
from qkv.layers.residuals import Residual
from qkv.mixers.attention.attention import Attention
from qkv.mixers.attention.cross_attention import CrossAttention, MemoryKeys
from qkv.models.block import Block, PreNorm
from qkv.models.fast.fingerprint import Fingerprint, observed
from qkv.models.fast.native_parts import beyond
from qkv.ops.native import library
from qkv.ops.native.pages import PageTable
from qkv.ops.native.step import (
    INPUTS,
    MIXED,
    MOST_VECTORS,
    STREAM,
    WIDE,
    Attending,
    Held,
    InputNorm,
    Matrix,
    ReadMemory,
    Rotation,
    Steps,
)
from qkv.ops.quantized.tiles import tiled_from
from qkv.ops.selection.choices import Choice, choose
from qkv.spec.base import Spec
from qkv.state.arrival import Arrival, Counts
from qkv.state.pages import Paged
from qkv.state.store import Dense


class Unknown(Exception):
    """Exception for a part that the native library does not support; the message names the part."""


def refuse_beyond(spec: Spec) -> None:
    """Raise ``Unknown`` if the library does not support all of ``spec``."""
    if name := beyond(spec):
        raise Unknown(name)


class NativeStep:
    """Decoding step that runs all ``blocks`` of a stack in one call of the native library."""

    covers = "all blocks"
    """Name of what one native call computes, for messages."""

    def __init__(self, blocks: Sequence[nn.Module]):
        self._parts, self._modules = tuple(blocks), list[nn.Module]()
        self.steps, self._attentions = Steps(), list[tuple[int, int]]()
        self._ropes: dict[Hashable, relative.Rope] = {}
        self._constants: dict[Hashable, Any] = {}
        """``Context.constants`` of all calls: the frequencies of the RoPEs."""
        self.unknown = self._built()
        """Name of the first part that the library does not support; empty if it supports all parts."""
        self.fingerprint = Fingerprint(self._modules)

    @property
    def known(self) -> bool:
        """True if the library supports all parts."""
        return not self.unknown

    def _built(self) -> str:
        """Add the steps of all parts; return the name of the first unsupported part, or an empty string."""
        try:
            self._build(self._parts)
        except Unknown as lacking:
            return str(lacking)
        return ""

    def current(self, parts: Sequence[nn.Module]) -> bool:
        """Return True if the steps were built from ``parts``, and these still have the same submodules and tensors."""
        return all(map(operator.is_, self._parts, parts)) and self.fingerprint.current()

    def takes(self, state: Sequence[Any]) -> bool:
        """Return True if the library supports all parts, and each store of ``state``: cache or memory, in fp32."""
        return self.known and all(map(_is_writable, self._stores(state)))

    def __call__(self, x: Tensor, arrival: Arrival, state: Sequence[Any]) -> Tensor:
        """Return the vectors (B, N, D) after the last block, 0 at padding; append the new keys and values to ``state``.

        x (B, N, D): input of the first block.
        """
        if arrival.real is None:
            return self._run(STREAM, arrival, state, x.flatten(0, 1)).view_as(x)
        y = torch.zeros_like(x)
        y[arrival.real] = self._run(STREAM, arrival, state, x[arrival.real])
        return y

    def _run(
        self,
        output: int,
        arrival: Arrival,
        state: Sequence[Any],
        x: Tensor | None = None,
        tokens: Sequence[int] = (),
    ) -> Tensor:
        """Run all steps on x (M, D) or tokens (M), without padding; return the buffer with index ``output``, (M,
        width).
        """
        stores, rotations = [_room(store, arrival) for store in self._stores(state)], list[Rotation]()
        if self._ropes:
            positions = arrival.positions if arrival.real is None else arrival.positions[arrival.real][None]
            context = Context(positions, arrival=arrival, constants=self._constants)
            rotations = [rope.angles(context, torch.float32) for rope in self._ropes.values()]
        return self.steps.run(arrival.past, arrival.counts, stores, output, rotations, x, tokens)

    def _stores(self, state: Sequence[Any]) -> Iterator[Any]:
        return (state[i][j] for i, j in self._attentions)

    def _build(self, parts: Sequence[nn.Module]) -> None:
        """Add the steps of all parts."""
        self._add_blocks(parts)

    def _add_blocks(self, blocks: Sequence[nn.Module]) -> None:
        for i, block in enumerate(blocks):
            if not isinstance(block, Block):
                raise Unknown(f"a block of the class {type(block).__name__}")
            if block.spec.order != "pre":
                raise Unknown(f"blocks in the order {block.spec.order!r}")
            refuse_beyond(block.spec)
            self._modules += [block, block.branches]
            for j, slot in enumerate(block.branches):
                self._add(i, j, slot)

    def _add(self, i: int, j: int, slot: nn.Module) -> None:
        if type(slot) is not PreNorm or type(slot.residual) is not Residual:
            raise Unknown("a residual connection other than 'add'")
        if slot.training:
            raise Unknown("training mode")
        norm, body = self._norm(slot.norm), slot.body
        self._modules += [slot, body, slot.residual]
        if type(body) is Attention:
            self._attention(body, norm)
            self._attentions.append((i, j))
        elif type(body) is CrossAttention:
            self._cross_attention(body, norm)
            self._attentions.append((i, j))
        elif type(body) in (FeedForward, GatedFeedForward):
            self._feed_forward(body, norm)
        else:
            raise Unknown(f"the branch {type(body).__name__}")

    def _attention(self, body: Attention, norm: InputNorm | None) -> None:
        turning = self._rotation(body.relative)
        biases = [None if bias is None else _readable(bias) for bias in (body.query_bias, body.value_bias)]
        sizes = Attending(body.num_heads, body.kv_heads, body.head_dim, body.value_dim, body.scale, turning, *biases)
        self._modules.append(body.relative)
        self._multiply(body.qkv, STREAM, WIDE, norm)
        self.steps.attend(sizes, WIDE, MIXED)
        self._multiply(body.output, MIXED, STREAM)

    def _cross_attention(self, body: CrossAttention, norm: InputNorm | None) -> None:
        """Add the steps of cross-attention; the state holds keys and values of the memory, with their biases."""
        part = body.part
        sizes = Attending(part.num_heads, part.kv_heads, body.head_dim, body.value_dim, body.scale)
        self._multiply(body.query, STREAM, WIDE, norm)
        self.steps.attend(sizes, WIDE, MIXED, memory=True)
        self._multiply(body.output, MIXED, STREAM)

    def _rotation(self, part: nn.Module) -> int:
        """Return the index of this RoPE among the distinct ones of the stack, or -1 if the attention has none."""
        if not isinstance(part, relative.Rope):
            return -1
        key = (part.part, part.head_dim)
        self._ropes.setdefault(key, part)
        return list(self._ropes).index(key)

    def _feed_forward(self, body: Any, norm: InputNorm | None) -> None:
        gated, activation = isinstance(body, GatedFeedForward), body.spec.activation
        if activation not in INPUTS:
            raise Unknown(f"the activation {activation!r}")
        self._multiply(body.gate_up if gated else body.up, STREAM, WIDE, norm)
        self._multiply(body.down, WIDE, STREAM, None, activation, gated)

    def _norm(self, norm: nn.Module) -> InputNorm | None:
        self._modules.append(norm)
        if isinstance(norm, norms.LayerNorm | norms.RMSNorm):
            refuse_beyond(norm.part)
        if type(norm) is norms.NoNorm:
            return None
        if type(norm) is norms.LayerNorm and norm.weight is not None:
            return InputNorm("layer norm", _readable(norm.weight), norm.bias, norm.eps)
        if type(norm) is norms.RMSNorm and norm.eps is not None:
            return InputNorm("rms norm", None if norm.weight is None else _readable(norm.weight), None, norm.eps)
        raise Unknown(f"the norm {type(norm).__name__}")

    def _multiply(self, layer: nn.Module, origin: int, to: int, *how: Any) -> None:
        """Add the steps that compute W f(x) + b, plus B A f(x) with an adapter; ``how``: f, as in
        ``Steps.multiply``.
        """
        self.steps.multiply(self._matrix(layer), origin, to, *how)
        if type(layer) is LowRank and not layer.merged:
            between = next(buffer for buffer in (WIDE, MIXED) if buffer not in (origin, to))
            self.steps.multiply(self._table(layer.lora_a), origin, between, *how)
            self.steps.multiply(self._table(layer.lora_b), between, to, adds=True)

    def _matrix(self, layer: nn.Module) -> Matrix:
        self._modules.append(layer)
        if type(layer) is QuantizedLinear:
            return self._table(layer.matrix, layer.bias)
        if type(layer) is LowRank and (layer.merged or layer.scale == 1.0):
            return self._table(layer.stored if layer.matrix is None else layer.matrix, layer.bias)
        if type(layer) is not Linear:
            raise Unknown(f"a linear layer of the class {type(layer).__name__}")
        return self._table(layer.weight, layer.bias)

    def _table(self, table: Tensor | QuantizedTable, bias: Tensor | None = None) -> Matrix:
        """Return the ``Matrix`` that describes a parameter or a quantised table."""
        if isinstance(table, QuantizedTable):
            self._modules.append(table)
            packed = table.packed
            if not packed.stored.is_cpu:
                raise Unknown("weights on another device than the CPU")
            sizes, scales = (packed.outer, packed.inner, packed.bits), (packed.scale, packed.group, packed.minimum)
            return Matrix(packed.stored, bias, *sizes, *scales, packed.levels, tiled_from(packed.bits))
        if _readable(table).stride(1) != 1:
            raise Unknown("weights stored in columns")
        return Matrix(table, bias, table.shape[0], table.shape[1])


def _readable(t: Tensor) -> Tensor:
    """Return the tensor. Raises ``Unknown`` if it is not in fp32 on the CPU."""
    if not t.is_cpu:
        raise Unknown("weights on another device than the CPU")
    if t.dtype != torch.float32:
        raise Unknown(f"weights of the type {str(t.dtype).removeprefix('torch.')}")
    return t


def _is_writable(store: Any) -> bool:
    """Return True if the native library can write keys and values to ``store``, or read those of a memory."""
    if type(store) is MemoryKeys:
        return isinstance(store.lengths, Counts) and all(
            t.dtype == torch.float32 and t.is_contiguous() for t in (store.keys, store.values)
        )
    if type(store) is Paged:
        return store.like.dtype == torch.float32
    return type(store) is Dense and store.keys.dtype == torch.float32


def _room(store: Any, arrival: Arrival) -> Held:
    """Return the memory of a store, grown if the new positions of the call need it."""
    if type(store) is MemoryKeys:
        assert isinstance(store.lengths, Counts)
        return ReadMemory(store.keys, store.values, store.lengths)
    if type(store) is Paged:
        return PageTable(store.room(arrival), store.sizes.positions)
    return store.room(arrival.end)


_OP = "decoding step"
_made: WeakKeyDictionary[nn.Module, NativeStep] = WeakKeyDictionary()


def native_step(
    stack: nn.Module, blocks: Sequence[nn.Module], x: Tensor, arrival: Arrival, state: Sequence[Any]
) -> NativeStep | None:
    """Return the native step of ``stack`` for new positions x (B, N, D); None if the blocks must be called instead.

    blocks: blocks in the order of execution.
    """
    if not x.is_cpu or x.dtype != torch.float32:
        return None
    return step_of(_made, stack, blocks, arrival, state, NativeStep)


Step = TypeVar("Step", bound=NativeStep)


def step_of(
    steps: WeakKeyDictionary[nn.Module, Step],
    stack: nn.Module,
    parts: Sequence[nn.Module],
    arrival: Arrival,
    state: Sequence[Any],
    kind: type[Step],
) -> Step | None:
    """Return the step of class ``kind`` for the new positions of a call; None if ``parts`` must be called instead.

    A step is built once from the ``parts`` of a stack and cached in ``steps``, the steps by stack.
    """
    if stack.training or observed("cpu") or not library.available():
        return None
    if not 0 < sum(arrival.counts) <= MOST_VECTORS:
        return None
    step = steps.get(stack)
    if step is None or not step.current(parts):
        step = steps[stack] = kind(parts)
        if step.known:
            case = f"up to {MOST_VECTORS} new positions, {kind.covers}"
            choose(_OP, case, lambda: Choice(_OP, case, "native", f"one call for {kind.covers}"))
    return step if not step.fingerprint.heard() and step.takes(state) else None
