"""Schemes of quantised weights in published folders, in which several tensors of a module represent one matrix.

``quantization_config.quant_method`` of a config names the scheme. A matrix is read as numbers with scales if it has
this form, so that it can be kept in 8 or 4 bits (``qkv.interop.mapping.narrow``), and else in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.interop.files.folder import Stored
from qkv.interop.files.slices import slice_of
from qkv.interop.mapping.config import Config
from qkv.interop.mapping.narrow import GROUP, NarrowWeights, round_weights
from qkv.spec.register import Register
from qkv.system.errors import UserError

KEYS = ("quantization_config", "compression_config")
"""Config keys that contain the settings of a scheme."""

Parts = Mapping[str, Tensor]


@dataclass(frozen=True)
class Scheme:
    """Scheme of quantised weights.

    method: ``quant_method`` in configs. key: suffix of a tensor name that every quantised module has. beside: suffixes
    of which every module has at least one, too; others: suffixes of optional tensors. check: raises ``UserError`` for
    unsupported settings. shape: returns (O, I), of a stack of experts (E, I, O), from the stored parts of a module, by
    suffix. read: returns a matrix from its parts and the settings, as ``NarrowWeights`` if it has that form, else in
    fp32. narrow: returns a matrix that ``read`` returns in fp32 in 4 bits, rounded, or None; without it, such a matrix
    is rounded to 8 bits. joint: text between the names of a module and its parts; ending: what follows the module in
    the name of the unquantised tensor.
    """

    method: str
    key: str
    beside: tuple[str, ...]
    others: tuple[str, ...]
    check: Callable[[Config], None]
    shape: Callable[[Mapping[str, Stored], Config], tuple[int, ...]]
    read: Callable[[Parts, Config], NarrowWeights | Tensor]
    narrow: Callable[[Parts], NarrowWeights | None] | None = None
    joint: str = "."
    ending: str = ".weight"


SCHEMES: Register[str, Scheme] = Register("qkv.interop.schemes")


def register(scheme: Scheme) -> Scheme:
    """Add a scheme to the register, by its method."""
    SCHEMES[scheme.method] = scheme
    return scheme


class QuantizedTensor(NamedTuple):
    """Matrix (O, I), or stack of experts' matrices, that a scheme stores in several tensors.

    Reading computes it in fp32.
    """

    parts: Mapping[str, Stored]
    scheme: Scheme
    settings: Config
    shape: tuple[int, ...]

    dtype = torch.float32

    @property
    def form(self) -> str:
        """Name of the scheme."""
        return self.scheme.method

    @property
    def numbers(self) -> int:
        """Number of elements of the matrix."""
        return math.prod(self.shape)

    def read(self) -> Tensor:
        """Read the matrix, or all of a stack, in fp32."""
        if len(self.shape) > 2:
            return torch.stack([self.at(i).read() for i in range(self.shape[0])])
        matrix = self._read()
        return matrix.dense() if isinstance(matrix, NarrowWeights) else matrix

    def read_into(self, out: Tensor) -> None:
        """Read the matrix into ``out``."""
        out.copy_(self.read())

    def narrow(self) -> NarrowWeights | None:
        """Read the matrix in 8 or 4 bits; return None if its row length is not a multiple of 32."""
        narrower = self.scheme.narrow
        rounded = None if narrower is None else narrower(self._tensors())
        matrix = self._read() if rounded is None else rounded
        if isinstance(matrix, NarrowWeights):
            return matrix
        return None if self.shape[1] % GROUP else round_weights(matrix)

    def at(self, index: int) -> QuantizedTensor:
        """Return one matrix of a stack, without reading it."""
        parts = {ending: slice_of(part, index) for ending, part in self.parts.items()}
        return self._replace(parts=parts, shape=self.shape[1:])

    def _read(self) -> NarrowWeights | Tensor:
        return self.scheme.read(self._tensors(), self.settings)

    def _tensors(self) -> Parts:
        return {ending: part.read() for ending, part in self.parts.items()}


def settings_of(values: Mapping[str, Any], source: str) -> Config | None:
    """Return the settings of the scheme that a config names, if any. Raises ``UserError`` for an unknown scheme."""
    key = next((key for key in KEYS if isinstance(values.get(key), Mapping)), None)
    if key is None:
        return None
    settings = Config(values[key], f"{source}: {key}")
    SCHEMES.all()
    settings.word("quant_method", allowed=SCHEMES)
    return settings


def with_matrices(stored: Mapping[str, Stored], settings: Config) -> dict[str, Stored]:
    """Replace the tensors of each quantised module by one matrix, named like the unquantised tensor.

    Raises ``UserError``.
    """
    scheme = SCHEMES[settings.word("quant_method")]
    scheme.check(settings)
    matrices, used = dict[str, Stored](), set[str]()
    for name in stored:
        module, key, rest = name.rpartition(scheme.joint + scheme.key)
        before = module + scheme.joint
        if not key or rest or (scheme.beside and not any(before + each in stored for each in scheme.beside)):
            continue
        endings = (scheme.key, *scheme.beside, *scheme.others)
        parts = {each: stored[before + each] for each in endings if before + each in stored}
        used |= {before + each for each in parts}
        matrices[module + scheme.ending] = QuantizedTensor(parts, scheme, settings, scheme.shape(parts, settings))
    return {name: tensor for name, tensor in stored.items() if name not in used} | matrices


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """Unpack numbers of ``bits`` from int32 words (…, W) -> (…, W · 32 / bits) in int16, the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (words[..., None] >> shifts & (1 << bits) - 1).flatten(-2).to(torch.int16)


def matrix_of(numbers: Tensor, scale: Tensor, group: Tensor | None = None) -> NarrowWeights | Tensor:
    """Build w = scale · number from numbers (O, I) and scales (O, G), as ``NarrowWeights`` if possible, else in fp32.

    group: index of each input's scale (I); None: consecutive runs of I / G inputs share a scale. 4 bits hold numbers
    from -8 to 7, 8 bits numbers of int8; groups must be such runs, of a multiple of 32 weights.
    """
    size = numbers.shape[1] // scale.shape[1]
    in_order = torch.arange(numbers.shape[1]) // size
    group = in_order if group is None else group.long()
    low, high = (int(n) for n in numbers.aminmax())
    if size % GROUP or low < -128 or high > 127 or not torch.equal(group, in_order):
        return numbers.to(torch.float32) * scale.to(torch.float32)[:, group]
    bits = 4 if low >= -8 and high <= 7 else 8
    return NarrowWeights(numbers.to(torch.int8), scale.repeat_interleave(size // GROUP, 1), None, bits)


def refuse(settings: Config, key: str, value: object, allowed: str) -> None:
    """Raise ``UserError`` for an unsupported setting of a scheme."""
    raise UserError(f"{settings.source}: {key} is {value!r}, which qkv does not support; allowed: {allowed}")
