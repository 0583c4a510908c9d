"""bitsandbytes: int8 with a scale per row (Dettmers et al. 2022), and 4 bits by a table of 16 levels (2023).

8 bits: w = q · SCB / 127. 4 bits: w = level[q] · absmax of its block; a byte holds two weights of a row, the first in
its upper half. ``absmax`` may be quantised, too, by a table of 256 levels, a factor per block of numbers, and an
offset. In qkv's 4 bits, levels are rounded to multiples of 1 / m, with the m that rounds them best (0.33 % of the
weights for NF4), and scales absmax / m to fp16.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from qkv.interop.files.folder import Stored
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.narrow import GROUP, NarrowWeights
from qkv.interop.schemes.scheme import Parts, Scheme, matrix_of, register

_STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
_OTHERS = ("weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map", "weight_format")


def _state(parts: Mapping[str, Tensor]) -> Any:
    """Read the settings of a 4-bit matrix, which are stored as the bytes of a JSON text."""
    return json.loads(next(parts[name] for name in _STATES if name in parts).numpy().tobytes())


def _check(settings: Config) -> None:
    settings.flag("load_in_4bit", False)


def _shape(parts: Mapping[str, Stored], settings: Config) -> tuple[int, int]:
    if "SCB" in parts:
        outer, inner = parts["weight"].shape
    else:
        outer, inner = _state({name: parts[name].read() for name in _STATES if name in parts})["shape"]
    return outer, inner


def _read(parts: Parts, settings: Config) -> NarrowWeights | Tensor:
    if "SCB" in parts:
        return matrix_of(parts["weight"].to(torch.int16), parts["SCB"].to(torch.float32)[:, None] / 127)
    state = _state(parts)
    outer, inner = state["shape"]
    levels = parts["weight.quant_map"].to(torch.float32)[_index(parts)]
    whole = levels[: outer * inner] * _largest(parts, state).repeat_interleave(state["blocksize"])[: outer * inner]
    return whole.view(outer, inner)


def _index(parts: Parts) -> Tensor:
    """Return the index of the level of each weight, row by row."""
    packed = parts["weight"].flatten()
    return torch.stack((packed >> 4, packed & 15), 1).flatten().int()


def _largest(parts: Parts, state: Any) -> Tensor:
    """Return the largest absolute weight of each block, in fp32."""
    absmax = parts["weight.absmax"]
    if "weight.nested_absmax" in parts:
        factor = parts["weight.nested_absmax"].repeat_interleave(state["nested_blocksize"])[: len(absmax)]
        absmax = parts["weight.nested_quant_map"][absmax.int()] * factor + state["nested_offset"]
    return absmax.to(torch.float32)


def _narrow(parts: Parts) -> NarrowWeights | None:
    """Read a matrix in 4 bits, with levels in int8; None if it has 8 bits, or 32 weights of a row several scales."""
    if "SCB" in parts:
        return None
    state = _state(parts)
    outer, inner = state["shape"]
    if inner % GROUP or state["blocksize"] % GROUP:
        return None
    factor, levels = _multiples(parts["weight.quant_map"].to(torch.float32))
    numbers = _index(parts)[: outer * inner].view(outer, inner).to(torch.int8)
    scale = (_largest(parts, state) / factor).repeat_interleave(state["blocksize"] // GROUP)
    return NarrowWeights(numbers, scale[: outer * inner // GROUP].view(outer, -1), None, 4, levels)


def _multiples(levels: Tensor) -> tuple[int, Tensor]:
    """Return the m up to 127 for which round(m · level) / m is nearest to the levels, and round(m · level) in int8."""
    factors = torch.arange(64, 128)[:, None]
    rounded = (factors * levels).round()
    best = int((rounded / factors - levels).square().sum(1).argmin())
    return 64 + best, rounded[best].to(torch.int8)


BITSANDBYTES = register(Scheme("bitsandbytes", "weight", ("SCB", *_STATES), _OTHERS, _check, _shape, _read, _narrow))
