"""GPTQ (Frantar et al. 2023): w = s (q - z), with a scale and a zero point per group of a row.

``qweight`` (I · bits / 32, O) holds q in int32 words along the inputs, ``qzeros`` (G, O · bits / 32) holds z along the
outputs, minus 1 unless the format is ``gptq_v2``, ``scales`` (G, O) is s, and ``g_idx`` (I) the group of each input.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from qkv.interop.files.folder import Stored
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.narrow import NarrowWeights
from qkv.interop.schemes.scheme import Parts, Scheme, matrix_of, refuse, register, unpack_words

_BITS = (2, 4, 8)


def _check(settings: Config) -> None:
    if (bits := settings.integer("bits")) not in _BITS:
        refuse(settings, "bits", bits, "2, 4 and 8")


def _shape(parts: Mapping[str, Stored], settings: Config) -> tuple[int, int]:
    words, outer = parts["qweight"].shape
    return outer, words * 32 // settings.integer("bits")


def _read(parts: Parts, settings: Config) -> NarrowWeights | Tensor:
    bits, scale = settings.integer("bits"), parts["scales"].t()
    q = unpack_words(parts["qweight"].t(), bits)
    one = 0 if settings.word("checkpoint_format", "gptq") == "gptq_v2" else 1
    zero = unpack_words(parts["qzeros"], bits).t()[: len(q)] + one
    in_order = torch.arange(q.shape[1]) // (q.shape[1] // scale.shape[1])
    group = parts.get("g_idx", in_order).long()
    return matrix_of(q - zero[:, group], scale, group)


GPTQ = register(Scheme("gptq", "qweight", ("scales",), ("qzeros", "g_idx"), _check, _shape, _read))
