"""Linear layers and embedding tables with quantised weights, for inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from qkv.layers.linear.linear import Linear
from qkv.ops.quantized.choose import linear
from qkv.ops.quantized.packed import PackedMatrix
from qkv.ops.quantized.reference import unpack


class QuantizedTable(nn.Module):
    """Matrix W (O, I) in 16, 8 or 4 bits, as a module with the tensors of ``PackedMatrix`` as buffers."""

    def __init__(self, matrix: PackedMatrix):
        """Create the module. ``matrix``: result of ``pack`` or ``pack_numbers`` of ``qkv.ops.quantized.reference``."""
        super().__init__()
        self.bits, self.outer, self.inner, self.group = matrix.bits, matrix.outer, matrix.inner, matrix.group
        self.register_buffer("stored", matrix.stored)
        self.register_buffer("scale", matrix.scale)
        self.register_buffer("minimum", matrix.minimum)
        self.register_buffer("levels", None if matrix.levels is None else matrix.levels.clone())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the matrix to another device with the model. ``model.to(torch.float32)`` and the like leave its dtypes
        unchanged, because kernels read its bytes in these.
        """
        for name, buffer in self._buffers.items():
            if buffer is not None:
                moved = fn(buffer)
                self._buffers[name] = moved if moved.dtype == buffer.dtype else buffer.to(moved.device)
        return self

    @property
    def packed(self) -> PackedMatrix:
        """Matrix in the form that operators accept."""
        stored, scale, minimum, levels = (self._buffers[name] for name in ("stored", "scale", "minimum", "levels"))
        sizes = self.bits, self.outer, self.inner, self.group
        return PackedMatrix(stored, scale, *sizes, minimum, levels)  # type: ignore[arg-type]

    @property
    def shape(self) -> torch.Size:
        """Shape (O, I) of the matrix."""
        return self.packed.shape

    @property
    def device(self) -> torch.device:
        """Device of the matrix."""
        return self.packed.device


def matrix_of(table: Tensor | QuantizedTable) -> Tensor | PackedMatrix:
    """Return what operators accept: a tensor unchanged, or the packed matrix of a quantised table."""
    return table.packed if isinstance(table, QuantizedTable) else table


class QuantizedLinear(Linear):
    """Linear layer y = x W^T + b with quantised W, for inference. x (…, I), b (O), y (…, O).

    The attribute ``weight`` is W in fp32, dequantised at each access, for code that reads the matrix without calling
    the layer.
    """

    def __init__(self, base: nn.Linear, matrix: PackedMatrix):
        """Create a layer with the bias b of ``base``, and ``matrix`` in place of its weight W."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.matrix = QuantizedTable(matrix)
        self.register_parameter("bias", base.bias)
        self.train(base.training)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """W (O, I) in fp32."""
        return unpack(self.matrix.packed)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.matrix.packed, self.bias)
