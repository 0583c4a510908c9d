"""AWQ (Lin et al. 2024): w = s (q - z) in 4 bits, with a scale and a zero point per group of a row.

``qweight`` (I, O / 8) and ``qzeros`` (G, O / 8) hold eight outputs in an int32 word, the even ones first; ``scales``
(G, O) is s.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from qkv.interop.files.folder import Stored
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.narrow import NarrowWeights
from qkv.interop.schemes.scheme import Parts, Scheme, matrix_of, refuse, register, unpack_words

_PLACES = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
"""Index in a word at which each of its eight outputs is stored."""


def _check(settings: Config) -> None:
    for key, default, allowed in (("bits", 4, 4), ("version", "gemm", "gemm")):
        value = settings.values.get(key, default)
        if str(value).lower() != str(allowed):
            refuse(settings, key, value, str(allowed))


def _shape(parts: Mapping[str, Stored], settings: Config) -> tuple[int, int]:
    inner, words = parts["qweight"].shape
    return words * 8, inner


def _outputs(words: Tensor) -> Tensor:
    """Unpack words (…, O / 8) to numbers (O, …)."""
    return unpack_words(words, 4).unflatten(-1, (-1, 8))[..., _PLACES].flatten(-2).t()


def _read(parts: Parts, settings: Config) -> NarrowWeights | Tensor:
    q, zero, scale = _outputs(parts["qweight"]), _outputs(parts["qzeros"]), parts["scales"].t()
    return matrix_of(q - zero.repeat_interleave(q.shape[1] // zero.shape[1], 1), scale)


AWQ = register(Scheme("awq", "qweight", ("scales",), ("qzeros",), _check, _shape, _read))
