"""Arrays of a page as bytes: weights in 8 bits, other numbers in 32, all in one compressed block."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import torch
from torch import Tensor


class ArrayBlock:
    """Bytes of many arrays; ``add`` and ``add_shares`` return where an array is: its offset, shape and form.

    The form "f4" is 32-bit floating point, little-endian, and "u1" a byte b for the value scale · (b / 255)², whose
    error is at most scale / 255 for large values and smaller for small ones.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, values: Tensor) -> dict[str, Any]:
        """Append numbers exactly, in 32 bits."""
        self._align()
        array = values.detach().to(torch.float32).cpu().contiguous().numpy().astype("<f4")
        return self._append(array.tobytes(), "f4", values)

    def add_shares(self, values: Tensor) -> dict[str, Any]:
        """Append numbers ≥ 0 in one byte each; NaN becomes 0."""
        x = values.detach().to(torch.float32).cpu().nan_to_num(0.0, 0.0, 0.0).clamp(min=0)
        scale = float(x.max()) if x.numel() else 0.0
        share = (x / scale).sqrt() if scale > 0 else torch.zeros_like(x)
        packed = (share * 255).round().to(torch.uint8).contiguous()
        return {**self._append(packed.numpy().tobytes(), "u1", values), "scale": scale}

    def text(self) -> str:
        """Return all bytes, compressed by zlib, in base 64."""
        return base64.b64encode(zlib.compress(b"".join(self._parts), 6)).decode()

    def _align(self) -> None:
        spare = -self._size % 4
        self._parts.append(b"\0" * spare)
        self._size += spare

    def _append(self, content: bytes, form: str, values: Tensor) -> dict[str, Any]:
        at = self._size
        self._parts.append(content)
        self._size += len(content)
        return {"at": at, "form": form, "shape": list(values.shape)}
