"""Decoding step of a whole stack in one native call, which runs a list of matrix products and attentions.

    embedding ─ x ─ product(norm x) ─ attention ─ + product ─ product(norm x) ─ + product(φ) ─ … ─ norm x ─ product

The embedding, and the norm and product after the blocks, are optional. With separate calls, a step of GPT-2 124M spends
3.3 ms outside of its products, which is as long as reading its weights in int4.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor

from qkv.ops.native import library
from qkv.ops.native.pages import PageTable

INPUTS = ("as it is", "layer norm", "rms norm", "relu", "relu2", "gelu", "gelu_tanh", "silu", "quick_gelu")
"""Functions applied to the input of a product, by index; names as in ``qkv.layers.position_wise.activations``."""
MOST_VECTORS = 32
"""Number of new positions of all rows up to which a native step is faster than separate calls."""
_SMALL = 1 << 19
"""Work per step of the list below which one thread is faster than several.

The work is bytes of weights times vectors, plus bytes of keys and values. Threads wait for each other at each step; if
other processes run, waiting takes a hundred times as long.
"""
STREAM, WIDE, MIXED, NORMED, LOGITS = range(5)
"""Indices of buffers: the residual stream x, two for intermediate results, the output of the final norm, and logits."""
_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_long


class _Product(ctypes.Structure):
    _fields_ = (
        ("bits", ctypes.c_int),
        *((name, _POINTER) for name in ("weights", "scales", "minimums", "levels", "bias", "x", "y")),
        *((name, _NUMBER) for name in ("rows", "inner", "outer", "stride", "groups", "size")),
        ("half", ctypes.c_bool),
        ("adds", ctypes.c_bool),
        ("tiled_from", _NUMBER),
        ("prepared", _POINTER),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        ("product", _Product),
        *((name, _NUMBER) for name in ("input", "gated")),
        *((name, _POINTER) for name in ("norm_weight", "norm_bias")),
        ("eps", ctypes.c_double),
        *((name, _NUMBER) for name in ("origin", "to", "heads", "kv_heads", "key_width", "value_width")),
        ("scale", ctypes.c_double),
        ("rotation", _NUMBER),
        *((name, _POINTER) for name in ("query_bias", "value_bias")),
    )


class _Rotation(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("cosines", "sines")),
        *((name, _NUMBER) for name in ("rotated", "number")),
    )


class _Span(ctypes.Structure):
    _fields_ = tuple((name, _NUMBER) for name in ("first", "count", "past"))


class _Embedding(ctypes.Structure):
    _fields_ = (("table", _Product), ("positions", _POINTER), ("offset", _NUMBER))


class _Store(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("keys", "values", "pages")),
        *((name, _NUMBER) for name in ("row_pages", "capacity")),
        ("lengths", _POINTER),
    )


@dataclass(frozen=True)
class Matrix:
    """Weights of a product, W (O, I) and b (O) or None.

    stored: for 32 ``bits``, W in fp32 row by row; else ``stored``, ``scale``, ``group``, ``minimum`` and ``levels`` as
    in ``qkv.ops.quantized.packed``. tiled_from: number of vectors from which products use tiles; 0: never.
    """

    stored: Tensor
    bias: Tensor | None
    outer: int
    inner: int
    bits: int = 32
    scale: Tensor | None = None
    group: int = 0
    minimum: Tensor | None = None
    levels: Tensor | None = None
    tiled_from: int = 0

    def described(self) -> _Product:
        """Return the weights as a struct for the library."""
        product = _Product(bits=self.bits, inner=self.inner, outer=self.outer, groups=1, bias=_address(self.bias))
        product.weights, product.scales = self.stored.data_ptr(), _address(self.scale)
        product.tiled_from = self.tiled_from
        if self.scale is None:
            product.stride = self.stored.element_size() * self.stored.stride(0)
        else:
            product.groups, product.size = self.scale.shape[1], self.group // library.BLOCK
            product.half = self.scale.dtype == torch.float16
            product.minimums, product.levels = _address(self.minimum), _address(self.levels)
        return product


@dataclass(frozen=True)
class InputNorm:
    """Normalisation of a product's input.

    kind: "layer norm" or "rms norm".   weight, bias: None if there are none.
    """

    kind: str
    weight: Tensor | None
    bias: Tensor | None
    eps: float


@dataclass(frozen=True)
class Attending:
    """Sizes of an attention.

    heads, kv_heads: number of query heads and of key heads. key_width, value_width: features per head. scale: factor of
    the scores. rotation: index of its rotation (RoPE) in the ``rotations`` of ``Steps.run``, or -1 for none.
    query_bias (H Dk), value_bias (G Dv): biases that the product before it lacks, because keys have none; else None.
    """

    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    scale: float
    rotation: int = -1
    query_bias: Tensor | None = None
    value_bias: Tensor | None = None


class ReadMemory(NamedTuple):
    """Keys (B, G, M, Dk) and values (B, G, M, Dv) of cross-attention in fp32, contiguous; lengths (B): number of
    unpadded positions.
    """

    keys: Tensor
    values: Tensor
    lengths: Sequence[int]


Held = tuple[Tensor, Tensor] | PageTable | ReadMemory
"""KV cache of an attention: (keys (B, G, C, Dk), values (B, G, C, Dv)) in fp32, or pages; or the memory that it reads.

A cache must have capacity for the new positions.
"""
Rotation = tuple[Tensor, Tensor]
"""Cosines and sines (…, Dr) of the rotation (RoPE) of queries and keys.

There is one vector for all new positions, or one per new position of a row, equal for all rows, or one per new position
of all rows.
"""


class Steps:
    """List of the products and attentions of one decoding step, which ``run`` executes."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._array: ctypes.Array[_Step] | None = None
        self._embedding: _Embedding | None = None
        self._widths, self._weights, self._position, self._memory_position = [0] * 5, 0, 0, 0
        # Weak references, since KV caches of requests are freed while the steps remain in use. The description is
        # replaced as a whole, since several threads may run the steps.
        self._held = _Described([], (), (_Store * 0)(), [])

    def embed(self, table: Matrix, positions: Tensor | None = None, offset: int = 0) -> None:
        """Set the embedding x = E[token] + P[position + ``offset``], with which the step begins.

        table: E (V, D); positions: P (L, D) in fp32, or None.
        """
        self._embedding = _Embedding(table=table.described(), positions=_address(positions), offset=offset)

    def multiply(
        self,
        matrix: Matrix,
        origin: int,
        to: int,
        norm: InputNorm | None = None,
        activation: str | None = None,
        gated: bool = False,
        adds: bool = False,
    ) -> None:
        """Append the product ``to`` = W f(``origin``) + b, or ``to`` += W f(``origin``) + b, of two buffers.

        The product is added (+=) if ``adds`` is true or ``to`` is the residual stream. f: ``norm``, ``activation`` or
        the identity; with ``gated``, the input is (a, b) and f is activation(a) ⊙ b.
        """
        step = self._reading(origin, to, norm, activation)
        step.product, step.gated = matrix.described(), gated
        step.product.adds = adds or to == STREAM
        self._steps.append(step)
        self._weights += matrix.stored.nbytes
        self._widths[origin] = max(self._widths[origin], matrix.inner * (1 + gated))
        self._widths[to] = max(self._widths[to], matrix.outer)

    def normalise(self, norm: InputNorm | None, width: int, origin: int, to: int) -> None:
        """Append ``to`` = ``norm``(``origin``), or a copy if ``norm`` is None, for vectors of ``width`` numbers."""
        step = self._reading(origin, to, norm, None)
        step.product.inner = width
        self._steps.append(step)
        self._widths[to] = max(self._widths[to], width)

    def attend(self, sizes: Attending, origin: int, to: int, memory: bool = False) -> None:
        """Append attention over the KV cache; ``origin`` holds concatenated queries, keys and values.

        memory: attention over a memory instead; ``origin`` holds queries only.
        """
        step = _Step(origin=origin, to=to, heads=sizes.heads, kv_heads=sizes.kv_heads, scale=sizes.scale)
        step.key_width, step.value_width, step.rotation = sizes.key_width, sizes.value_width, sizes.rotation
        step.query_bias, step.value_bias = _address(sizes.query_bias), _address(sizes.value_bias)
        position = 4 * sizes.kv_heads * (sizes.key_width + sizes.value_width)
        self._position += 0 if memory else position
        self._memory_position += position if memory else 0
        self._steps.append(step)
        self._widths[to] = max(self._widths[to], sizes.heads * sizes.value_width)

    @staticmethod
    def _reading(origin: int, to: int, norm: InputNorm | None, activation: str | None) -> _Step:
        kind = norm.kind if norm is not None else activation or INPUTS[0]
        step = _Step(input=INPUTS.index(kind), origin=origin, to=to)
        if norm is not None:
            step.norm_weight, step.norm_bias, step.eps = _address(norm.weight), _address(norm.bias), norm.eps
        return step

    def _described(self, stores: Sequence[Held]) -> ctypes.Array[_Store]:
        """Return the KV caches as structs for the library; reuse those of the last run if the caches are the same."""
        tensors = [t for store in stores for t in (store[:1] if isinstance(store, PageTable) else store[:2])]
        lengths = tuple(store.lengths for store in stores if isinstance(store, ReadMemory))
        last = self._held
        if (
            len(last.tensors) != len(tensors)
            or last.lengths != lengths
            or not all(old() is new for old, new in zip(last.tensors, tensors, strict=True))
        ):
            counts = [(_NUMBER * len(each))(*each) for each in lengths]
            several = iter(counts)
            described = (_Store * len(stores))(*(_described(store, several) for store in stores))
            last = self._held = _Described(list(map(ref, tensors)), lengths, described, counts)
        return last.stores

    def run(
        self,
        past: Sequence[int],
        counts: Sequence[int],
        stores: Sequence[Held],
        index: int = STREAM,
        rotations: Sequence[Rotation] = (),
        x: Tensor | None = None,
        tokens: Sequence[int] = (),
    ) -> Tensor:
        """Run all steps for M new positions, row by row; return the buffer with the index ``index``, (M, width), fp32.

        stores: one KV cache per attention, in order. past (B): number of positions already in the caches. counts (B):
        number of new positions, whose keys and values are written to the caches. x (M, D): initial residual stream;
        None with an embedding, which reads the token ids ``tokens`` (M).
        """
        if self._array is None or len(self._array) < len(self._steps):
            self._array = (_Step * len(self._steps))(*self._steps)
        ends = list(accumulate(counts))
        number, firsts = ends[-1], (end - count for end, count in zip(ends, counts, strict=True))
        # Few, large allocations: between two steps, a torch operator takes ten times as long as in a loop.
        output = torch.empty(number, self._widths[index], dtype=torch.float32)
        rest = torch.empty(number * (sum(self._widths) - self._widths[index]), dtype=torch.float32)
        places, free = list[int](), rest.data_ptr()
        for each, width in enumerate(self._widths):
            places.append(output.data_ptr() if each == index else free)
            free += 0 if each == index else 4 * number * width
        if x is not None:
            self._begin_with(x, places[STREAM])
        embedding = None if self._embedding is None else ctypes.byref(self._embedding)
        library.functions().qkv_step(
            self._array,
            len(self._steps),
            (_POINTER * len(places))(*places),
            (_Span * len(counts))(*zip(firsts, counts, past, strict=True)),
            len(counts),
            self._described(stores),
            (_Rotation * len(rotations))(*map(_turning, rotations)),
            embedding if x is None else None,
            (_NUMBER * len(tokens))(*tokens),
            self._threads(past, counts, next((sum(s.lengths) for s in stores if isinstance(s, ReadMemory)), 0)),
        )
        return output

    @staticmethod
    def _begin_with(x: Tensor, place: int) -> None:
        x = x.contiguous()
        ctypes.memmove(place, x.data_ptr(), x.nbytes)

    def _threads(self, past: Sequence[int], counts: Sequence[int], memory: int) -> int:
        """Return the number of threads. memory: number of positions of the memories of all rows."""
        work = self._weights * sum(counts) + self._position * sum(past) + self._memory_position * memory
        return torch.get_num_threads() if work >= _SMALL * len(self._steps) else 1


class _Described(NamedTuple):
    """KV caches and memories as structs, with the arrays of lengths to which these point."""

    tensors: list[ref[Tensor]]
    lengths: tuple[Sequence[int], ...]
    stores: ctypes.Array[_Store]
    counts: list[ctypes.Array[ctypes.c_long]]


def _described(store: Held, lengths: Iterator[ctypes.Array[ctypes.c_long]]) -> _Store:
    """Return a struct for the library. lengths: arrays of the lengths of memories, in the order of the stores."""
    if isinstance(store, ReadMemory):
        keys, values, _ = store
        place = ctypes.addressof(next(lengths))
        return _Store(keys=keys.data_ptr(), values=values.data_ptr(), capacity=keys.shape[2], lengths=place)
    if isinstance(store, PageTable):
        addresses, size = store
        return _Store(pages=addresses.data_ptr(), row_pages=addresses.shape[1], capacity=size)
    keys, values = store
    return _Store(keys=keys.data_ptr(), values=values.data_ptr(), capacity=keys.shape[2])


def _turning(rotation: Rotation) -> _Rotation:
    cosines, sines = rotation
    width = cosines.shape[-1]
    return _Rotation(cosines.data_ptr(), sines.data_ptr(), width, cosines.numel() // width)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
