"""Selection of the precision of orthogonalisation by one timing per shape on this machine.

Jordan et al. use bf16, which is the fastest on their GPU and accurate enough for these iterations. A processor without
bf16 instructions takes a hundred times as long for bf16 as for fp32.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from qkv.ops.orthogonal import reference
from qkv.ops.orthogonal.products import TWINS
from qkv.ops.selection import onednn as permission
from qkv.ops.selection.choices import Choice, choose, fastest
from qkv.system.optional import turned_off

# Larger matrices are timed at these sizes, because slow bf16 products of large ones take seconds.
_ROWS, _COLUMNS = 128, 512
_TOGETHER = 2


def orthogonal(g: Tensor) -> Tensor:
    """Orthogonalise each matrix of g (K, M, N) or (M, N) for Muon, in the faster precision; see ``reference``."""
    if g.shape[-2] > g.shape[-1]:
        return orthogonal(g.mT).mT
    if g.dtype != torch.float32:
        return reference.orthogonal(g)
    return TWINS[choice(g.shape[-2], g.shape[-1], g.device).twin](g)


def choice(rows: int, columns: int, device: torch.device) -> Choice:
    """Choose the precision for matrices of this shape, ``rows`` ≤ ``columns``; timed once."""
    m, n = min(rows, _ROWS), min(columns, _COLUMNS)
    case = f"{m} × {n}{' and larger' if m * n == _ROWS * _COLUMNS else ''}"

    def decide() -> Choice:
        if device.type != "cpu":
            return Choice("orthogonal", case, "bf16", "accelerators multiply fastest in bf16")
        g = torch.ones(_TOGETHER, m, n)
        runs = {name: partial(TWINS[name], g, steps=1) for name in _candidates()}
        return fastest("orthogonal", case, "fp32", runs, f"one step of {_TOGETHER} matrices")

    return choose("orthogonal", case, decide, TWINS)


def _candidates() -> list[str]:
    here = {"oneDNN": permission.available(), "bf16": not turned_off("bf16")}
    return [name for name in TWINS if here.get(name, True)]
