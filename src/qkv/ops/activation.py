"""Activation functions, computed by torch or, if it is faster, by the native kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.ops.native import library
from qkv.ops.native.step import INPUTS
from qkv.ops.selection.choices import Choice, by_reference, choose, chosen, fastest

_SMALLEST = 1 << 15
"""Number of elements below which torch is used, because the overhead of a native call exceeds its gain."""
_SAMPLE = (512, 3072)
_OP = "activation"


def plain_inference(x: Tensor) -> bool:
    """Return whether an implementation that supports only fp32 on the CPU, without gradients, can process ``x``.

    False while gradients are enabled, during compilation and export, and under autocast or a dispatch mode.
    """
    return (
        x.dtype == torch.float32
        and x.is_cpu
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and library.readable(x)
        and not torch.is_autocast_enabled("cpu")
        and not by_reference()
    )


@dataclass(frozen=True)
class Activation:
    """Activation function φ. ``name``: its name in ``INPUTS``; ``plain``: torch's function, which has gradients."""

    name: str
    plain: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        if not plain_inference(x) or x.numel() < _SMALLEST or not x.is_contiguous() or self.choice().twin == "torch":
            return self.plain(x)
        return self.native(x)

    def native(self, x: Tensor) -> Tensor:
        """Compute φ(x) by the native kernel, with an absolute error of at most 2e-7 max(1, |x|)."""
        return library.activation(x, INPUTS.index(self.name))

    def choice(self) -> Choice:
        """Return the implementation for inference; it is timed once, and the result is cached."""
        return chosen(_OP, self.name) or choose(_OP, self.name, self._decided, self._implementations())

    def _implementations(self) -> list[str]:
        return ["torch", "native"] if library.available() else ["torch"]

    def _decided(self) -> Choice:
        if not library.available():
            return Choice(_OP, self.name, "torch", f"the native kernel does not run here: {library.described()}")
        x = torch.linspace(-4, 4, _SAMPLE[0] * _SAMPLE[1]).view(_SAMPLE)

        def run(function: Callable[[Tensor], Tensor]) -> Callable[[], object]:
            return lambda: function(x)

        runs = {"torch": run(self.plain), "native": run(self.native)}
        return fastest(_OP, self.name, "torch", runs, f"of {_SAMPLE[0]} × {_SAMPLE[1]} numbers")
