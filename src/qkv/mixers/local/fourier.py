"""Fourier transform over positions and features as a mixer (FNet)."""

from __future__ import annotations

from torch import Tensor

from qkv.layers.branch import Branch, State
from qkv.layers.context import Context
from qkv.mixers.whole_rows import each_row
from qkv.ops.fourier import fourier
from qkv.spec.mixers import position_matrices as spec
from qkv.spec.register import implements


@implements(spec.Fourier)
class Fourier(Branch):
    """FNet: y = Re(F_n x F_D), x (B, N, D), the Fourier transform of each row (Lee-Thorp et al. 2022).

    Without weights; bidirectional and stateless.
    """

    causal = False
    rewindable = False

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> tuple[Tensor, State | None]:
        return each_row(x, context, fourier, self.spec.kind), state
