"""bitsandbytes: int8 with a scale per row (Dettmers et al. 2022), and 4 bits by a table of 16 levels (2023).

8 bits: w = q · SCB / 127. 4 bits: w = level[q] · absmax of its block; a byte holds two weights of a row, the first in
its upper half. ``absmax`` may be quantised, too, by a table of 256 levels, a factor per block of numbers, and an
offset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from qkv.interop.files.folder import Stored
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.narrow import NarrowWeights
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
    state, packed = _state(parts), parts["weight"].flatten()
    index = torch.stack((packed >> 4, packed & 15), 1).flatten().long()
    absmax = parts["weight.absmax"]
    if "weight.nested_absmax" in parts:
        factor = parts["weight.nested_absmax"].repeat_interleave(state["nested_blocksize"])[: len(absmax)]
        absmax = parts["weight.nested_quant_map"][absmax.long()] * factor + state["nested_offset"]
    levels = parts["weight.quant_map"].to(torch.float32)[index]
    outer, inner = state["shape"]
    whole = levels[: outer * inner] * absmax.to(torch.float32).repeat_interleave(state["blocksize"])[: outer * inner]
    return whole.view(outer, inner)


BITSANDBYTES = register(Scheme("bitsandbytes", "weight", ("SCB", *_STATES), _OTHERS, _check, _shape, _read))
