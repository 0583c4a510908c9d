"""A decoding step of a whole stack in one call: its products and attentions as a list that the native library follows.

    x ─ product(norm x) ─ attention ─ + product ─ product(norm x) ─ + product(φ) ─ … ─ x

Called part by part, a step of GPT-2 124M spends 3.3 ms outside of its products, as long as reading its weights in int4.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.ops.native import library
from qkv.ops.native.pages import PageTable

INPUTS = ("as it is", "layer norm", "rms norm", "relu", "relu2", "gelu", "gelu_tanh", "silu", "quick_gelu")
"""What can become of the input of a product; the names of activations are those of ``qkv.layers.activations``."""
MOST_ROWS = 32
"""Rows up to which a step takes less time than its parts."""
_SMALL = 1 << 19
"""Bytes per step, of weights times rows and of keys and values, below which one thread is faster than several that wait
for each other at each step; beside other processes, waiting takes a hundred times as long.
"""
STREAM, WIDE, MIXED = range(3)
"""Buffers: the residual stream x, and two for what lies between products."""
_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_long


class _Product(ctypes.Structure):
    _fields_ = (
        ("bits", ctypes.c_int),
        *((name, _POINTER) for name in ("weights", "scales", "bias", "x", "y")),
        *((name, _NUMBER) for name in ("rows", "inner", "outer", "stride", "groups", "size")),
        ("adds", ctypes.c_bool),
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
    )


class _Store(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("keys", "values", "pages")),
        *((name, _NUMBER) for name in ("row_pages", "capacity")),
        *((name, _POINTER) for name in ("cosines", "sines")),
        *((name, _NUMBER) for name in ("rotated", "rotations")),
    )


@dataclass(frozen=True)
class Matrix:
    """Weights of a product, W (O, I) and b (O) or None.

    stored: in 32 ``bits`` rows in fp32 one after the other; else with scale and group as in
    ``qkv.ops.quantized.packed``.
    """

    stored: Tensor
    bias: Tensor | None
    outer: int
    inner: int
    bits: int = 32
    scale: Tensor | None = None
    group: int = 0

    def described(self) -> _Product:
        """The weights as the library takes them."""
        found = _Product(bits=self.bits, inner=self.inner, outer=self.outer, groups=1, bias=_address(self.bias))
        found.weights, found.scales = self.stored.data_ptr(), _address(self.scale)
        if self.scale is None:
            found.stride = self.stored.element_size() * self.stored.stride(0)
        else:
            found.groups, found.size = self.scale.shape[1], self.group // library.BLOCK
        return found


@dataclass(frozen=True)
class InputNorm:
    """Normalisation of a product's input: "layer norm" or "rms norm", with weight and bias or None, and epsilon."""

    kind: str
    weight: Tensor | None
    bias: Tensor | None
    eps: float


@dataclass(frozen=True)
class Attending:
    """Sizes of an attention: heads of queries and of keys, features of a key and of a value, factor of the scores."""

    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    scale: float


@dataclass(frozen=True)
class HeldKeys:
    """Store of an attention in a step: (keys (B, G, C, Dk), values (B, G, C, Dv)) in fp32, or pages, with room for the
    new positions, and the rotation (cosines, sines) of queries and keys, each (B or 1, …, Dr), or None.
    """

    store: tuple[Tensor, Tensor] | PageTable
    rotation: tuple[Tensor, Tensor] | None = None


class Steps:
    """List of products and attentions of one decoding step, and its run."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._array: ctypes.Array[_Step] | None = None
        self._widths, self._weights, self._position = [0, 0, 0], 0, 0

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
        """Add ``to`` = W f(``origin``) + b; with ``adds``, and for the residual stream, ``to`` += W f(``origin``) + b.

        f: ``norm``, or ``activation``, or with ``gated`` activation(a) ⊙ b of an input (a, b), or nothing.
        """
        kind = norm.kind if norm is not None else activation or INPUTS[0]
        step = _Step(product=matrix.described(), input=INPUTS.index(kind), gated=gated, origin=origin, to=to)
        step.product.adds = adds or to == STREAM
        if norm is not None:
            step.norm_weight, step.norm_bias, step.eps = _address(norm.weight), _address(norm.bias), norm.eps
        self._steps.append(step)
        self._weights += matrix.stored.nbytes
        self._widths[to] = max(self._widths[to], matrix.outer)

    def attend(self, sizes: Attending, origin: int, to: int) -> None:
        """Add the attention of the queries in ``origin``, beside which are keys and values, to the stored positions."""
        step = _Step(origin=origin, to=to, heads=sizes.heads, kv_heads=sizes.kv_heads, scale=sizes.scale)
        step.key_width, step.value_width = sizes.key_width, sizes.value_width
        self._position += 4 * sizes.kv_heads * (sizes.key_width + sizes.value_width)
        self._steps.append(step)
        self._widths[to] = max(self._widths[to], sizes.heads * sizes.value_width)

    def _listed(self) -> ctypes.Array[_Step]:
        if self._array is None or len(self._array) < len(self._steps):
            self._array = (_Step * len(self._steps))(*self._steps)
        return self._array

    def run(self, x: Tensor, positions: Sequence[int], stores: Sequence[HeldKeys]) -> Tensor:
        """Residual stream after the steps: x (B, 1, D) in fp32, a new position of each row -> (B, 1, D).

        positions (B): number of positions in the stores, one for each attention in order, which are written to.
        """
        rows, y = len(positions), x.clone(memory_format=torch.contiguous_format)
        scratch = [x.new_empty(rows * width) for width in self._widths[1:]]
        held = (_Store * len(stores))(*map(_described, stores))
        library.functions().qkv_step(
            self._listed(),
            len(self._steps),
            y.data_ptr(),
            *(buffer.data_ptr() for buffer in scratch),
            rows,
            (_NUMBER * rows)(*positions),
            held,
            self._threads(positions),
        )
        return y

    def _threads(self, positions: Sequence[int]) -> int:
        work = self._weights * len(positions) + self._position * sum(positions)
        return torch.get_num_threads() if work >= _SMALL * len(self._steps) else 1


def _described(held: HeldKeys) -> _Store:
    if isinstance(held.store, PageTable):
        addresses, size = held.store
        found = _Store(pages=addresses.data_ptr(), row_pages=addresses.shape[1], capacity=size, rotations=1)
    else:
        keys, values = held.store
        found = _Store(keys=keys.data_ptr(), values=values.data_ptr(), capacity=keys.shape[2], rotations=1)
    if held.rotation is not None:
        cosines, sines = held.rotation
        found.cosines, found.sines = cosines.data_ptr(), sines.data_ptr()
        found.rotations, found.rotated = cosines.shape[0], cosines.shape[-1]
    return found


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
