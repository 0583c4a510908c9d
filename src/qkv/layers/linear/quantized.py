"""Linear layers and embedding tables with quantised weights, for inference."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.layers.linear.linear import Linear
from qkv.ops.quantized.choose import linear
from qkv.ops.quantized.packed import PackedMatrix
from qkv.ops.quantized.reference import pack, unpack


class QuantizedTable(nn.Module):
    """Matrix W (O, I) in 16, 8 or 4 bits, as a module with the buffers ``stored`` and ``scale``."""

    def __init__(self, weight: Tensor, bits: int, group: int):
        """Quantise ``weight``; see ``qkv.ops.quantized.reference``."""
        super().__init__()
        found = pack(weight.detach(), bits, group)
        self.bits, self.outer, self.inner, self.group = found.bits, found.outer, found.inner, found.group
        self.register_buffer("stored", found.stored)
        self.register_buffer("scale", found.scale)

    @property
    def packed(self) -> PackedMatrix:
        """Matrix in the form that operators accept."""
        stored, scale = self._buffers["stored"], self._buffers["scale"]
        return PackedMatrix(stored, scale, self.bits, self.outer, self.inner, self.group)  # type: ignore[arg-type]

    @property
    def shape(self) -> torch.Size:
        """Shape (O, I) of the matrix."""
        return self.packed.shape

    @property
    def device(self) -> torch.device:
        """Device of the matrix."""
        return self.packed.device


def matrix_of(table: Tensor | QuantizedTable) -> Tensor | PackedMatrix:
    """Return a table in the form that operators accept."""
    return table.packed if isinstance(table, QuantizedTable) else table


class QuantizedLinear(Linear):
    """Linear layer y = x W^T + b with quantised W, for inference. x (…, I), b (O), y (…, O).

    The attribute ``weight`` is W in fp32, dequantised at each access, for code that reads the matrix without calling
    the layer.
    """

    def __init__(self, base: nn.Linear, bits: int, group: int):
        """Quantise W of ``base``, and take over its b."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.matrix = QuantizedTable(base.weight, bits, group)
        self.register_parameter("bias", base.bias)
        self.train(base.training)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """W (O, I) in fp32."""
        return unpack(self.matrix.packed)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.matrix.packed, self.bias)
