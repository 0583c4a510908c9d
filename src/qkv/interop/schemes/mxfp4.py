"""MXFP4 of gpt-oss (OpenAI 2025): experts in four bits, numbers of e2m1 with a power of two per 32 weights of a row.

A stack of E experts has ``…_blocks`` (E, O, I / 32, 16), whose bytes hold two weights of a row, the first in the lower
half, and ``…_scales`` (E, O, I / 32), bytes of e8m0. The unquantised tensor ``…`` has the shape (E, I, O).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from qkv.interop.files.folder import Stored
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.levels import E2M1, half_powers
from qkv.interop.mapping.narrow import GROUP, NarrowWeights
from qkv.interop.schemes.scheme import Parts, Scheme, register


def _check(settings: Config) -> None:
    settings.flag("dequantize", False)


def _shape(parts: Mapping[str, Stored], settings: Config) -> tuple[int, ...]:
    *experts, outer, groups = parts["scales"].shape
    return (*experts, groups * GROUP, outer)


def _read(parts: Parts, settings: Config) -> NarrowWeights | Tensor:
    exponents = parts["scales"]
    pairs = parts["blocks"].reshape(*exponents.shape, GROUP // 2)
    numbers = torch.stack((pairs & 15, pairs >> 4), -1).flatten(1).view(torch.int8)
    return NarrowWeights(numbers, half_powers(exponents), None, 4, E2M1, transposed=True)


MXFP4 = register(Scheme("mxfp4", "blocks", ("scales",), (), _check, _shape, _read, joint="_", ending=""))
