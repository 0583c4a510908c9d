"""compressed-tensors, the format of llm-compressor: w = s (q - z), with one scale per row, group or matrix.

``pack-quantized`` holds q + 2^(bits - 1) in int32 words along a row (``weight_packed``, with ``weight_shape``), and z
in words along the column; ``int-quantized`` holds q in int8 and ``float-quantized`` in fp8 (``weight``).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from qkv.interop.files.folder import Stored
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.narrow import NarrowWeights
from qkv.interop.schemes.scheme import Parts, Scheme, matrix_of, refuse, register, unpack_words

_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
_METHOD = "compressed-tensors"


def _bits(settings: Config) -> int:
    groups = settings.table("config_groups").values
    several = {int(group["weights"]["num_bits"]) for group in groups.values() if group.get("weights")}
    if len(several) != 1:
        refuse(settings, "config_groups", sorted(several), "weights of one number of bits")
    return several.pop()


def _check(settings: Config) -> None:
    if (form := settings.word("format")) not in _FORMATS:
        refuse(settings, "format", form, ", ".join(_FORMATS))
    if (bits := _bits(settings)) not in (4, 8):
        refuse(settings, "num_bits", bits, "4 and 8")


def _shape(parts: Mapping[str, Stored], settings: Config) -> tuple[int, int]:
    if "weight_packed" not in parts:
        outer, inner = parts["weight"].shape
        return outer, inner
    outer, inner = parts["weight_shape"].read().tolist()
    return outer, inner


def _read(parts: Parts, settings: Config) -> NarrowWeights | Tensor:
    scale = parts["weight_scale"].reshape(-1, parts["weight_scale"].shape[-1] if parts["weight_scale"].dim() else 1)
    if "weight_packed" not in parts:
        q = parts["weight"]
        scale = scale.expand(q.shape[0], -1)
        if q.is_floating_point():
            return q.to(torch.float32) * scale.to(torch.float32).repeat_interleave(q.shape[1] // scale.shape[1], 1)
        return matrix_of(_less(q.to(torch.int16), parts.get("weight_zero_point")), scale)
    bits, (outer, inner) = _bits(settings), parts["weight_shape"].tolist()
    q, zero = unpack_words(parts["weight_packed"], bits)[:, :inner], parts.get("weight_zero_point")
    if zero is not None and zero.dtype == torch.int32:  # z has the same packing and offset as q
        zero = unpack_words(zero.t(), bits).t()[:outer]
    else:
        q = q - (1 << bits - 1)
    group = parts.get("weight_g_idx")
    return matrix_of(_less(q, zero, group), scale, group)


def _less(q: Tensor, zero: Tensor | None, group: Tensor | None = None) -> Tensor:
    """Subtract the zero point of each group from q; group: as in ``matrix_of``."""
    if zero is None:
        return q
    index = torch.arange(q.shape[1]) // (q.shape[1] // zero.shape[1]) if group is None else group.long()
    return q - zero.to(torch.int16)[:, index]


_OTHERS = ("weight_zero_point", "weight_shape", "weight_g_idx", "input_scale", "input_zero_point")


COMPRESSED = register(Scheme(_METHOD, "weight_scale", ("weight_packed", "weight"), _OTHERS, _check, _shape, _read))
