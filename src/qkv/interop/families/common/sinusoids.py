"""Stored tables of sinusoids and frequencies: the published code reads them, whatever their values are."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.interop.mapping.config import Config
from qkv.layers.positions import Sinusoidal as Waves
from qkv.layers.positions import rope_frequencies
from qkv.ops.at_least_single import at_least_single
from qkv.spec.parts import Rope, Sinusoidal


def is_sinusoid(config: Config, part: Sinusoidal, name: str) -> bool:
    """Return True unless the files contain a table ``name`` whose values differ from the sinusoids of ``part``.

    Files of a model without a head lack the first word of ``name``. The tolerance is the rounding of the stored dtype,
    at least that of fp16.
    """
    table = _stored(config, name)
    if table is None or table.dim() != 2 or len(table) <= part.offset:
        return True
    computed = Waves(part, *table.shape)(torch.arange(len(table) - part.offset), table.dtype)
    return torch.allclose(at_least_single(table[part.offset :]), computed, rtol=0, atol=_rounding(table))


def other_frequencies(config: Config, part: Rope, ending: str) -> str | None:
    """Return the first stored vector whose values differ from the frequencies of ``part``; None if none does.

    ``ending``: end of the names of such vectors. The tolerance is relative, and as in ``is_sinusoid``.
    """
    return next((name for name in config.named(ending) if not _is_rope(config, part, name)), None)


def _is_rope(config: Config, part: Rope, name: str) -> bool:
    stored = _stored(config, name)
    if stored is None or stored.dim() != 1:
        return True
    wide = at_least_single(stored)
    computed, _ = rope_frequencies(part, 2 * len(stored), wide.dtype)
    return torch.allclose(wide, computed, rtol=_rounding(stored), atol=1e-6)


def _stored(config: Config, name: str) -> Tensor | None:
    table = config.stored(name)
    table = config.stored(name.partition(".")[2]) if table is None else table
    return table if table is not None and table.is_floating_point() else None


def _rounding(table: Tensor) -> float:
    return max(1e-3, 2 * torch.finfo(table.dtype).eps)
