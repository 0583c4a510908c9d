"""FP8 weights (DeepSeek-AI 2024): w = s q with q in fp8 (e4m3) and s per block of rows and columns, or per matrix."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from qkv.interop.files.folder import Stored
from qkv.interop.mapping.config import Config
from qkv.interop.schemes.scheme import Parts, Scheme, register


def _check(settings: Config) -> None:
    settings.items("weight_block_size")


def _shape(parts: Mapping[str, Stored], settings: Config) -> tuple[int, int]:
    outer, inner = parts["weight"].shape
    return outer, inner


def _read(parts: Parts, settings: Config) -> Tensor:
    q = parts["weight"].to(torch.float32)
    scale = next(parts[name] for name in ("weight_scale_inv", "weight_scale") if name in parts).to(torch.float32)
    if scale.numel() == 1:
        return q * scale.reshape(())
    for axis, size in enumerate(settings.items("weight_block_size") or (1, q.shape[1])):
        scale = scale.repeat_interleave(int(size), axis).narrow(axis, 0, q.shape[axis])
    return q * scale


FP8 = register(Scheme("fp8", "weight", ("weight_scale_inv", "weight_scale"), ("input_scale",), _check, _shape, _read))
