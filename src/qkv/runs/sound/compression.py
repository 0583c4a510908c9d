"""Compression of sounds to codes by a neural codec, and back."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qkv.data.processors.codec import Codec
from qkv.data.records.sounds.cells import Sound
from qkv.data.records.values import Unusable
from qkv.runs.run import Run
from qkv.runs.storage.load import load
from qkv.system.errors import UserError
from qkv.system.torch_settings import with_usual_settings

SUFFIX = ".npz"
"""Extension of files with codes."""
_NAMES = ("codes", "samples", "rate")


class CodedWave(NamedTuple):
    """Codes (N, n) of a sound of ``samples`` samples at ``rate`` Hz, of the first n codebooks of a codec."""

    codes: np.ndarray
    samples: int
    rate: int

    def to_bytes(self) -> bytes:
        """Return the bytes of a file with the codes (npz)."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, codes=self.codes, samples=np.array(self.samples), rate=np.array(self.rate))
        return buffer.getvalue()

    @classmethod
    def read(cls, path: Path) -> CodedWave:
        """Read a file of ``to_bytes``. Raises ``UserError``."""
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
                codes, samples, rate = (arrays[name] for name in _NAMES)
                wave = cls(codes, int(samples), int(rate))
        except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
            raise UserError(f"{path} holds no codes of a sound: {error}") from None
        if codes.ndim != 2 or codes.dtype.kind not in "iu" or not codes.size or wave.samples < 0:
            raise UserError(
                f"{path} holds codes of the shape {codes.shape} of {codes.dtype}, not integers (N, codebooks)"
            )
        return wave


@with_usual_settings
def compress(run: Run | str | Path, sound: Any, codebooks: int | None = None) -> CodedWave:
    """Compress a sound with a neural codec: a file name, or a pair (samples, rate), to codes.

    ``codebooks``: number of first codebooks; default: all. Raises ``UserError``.
    """
    codec = _opened(run)
    most = codec.head.part.quantizer.codebooks
    if codebooks is not None and not 1 <= codebooks <= most:
        raise UserError(f"codebooks: {codebooks} given, but the codec has 1 to {most}")
    try:
        samples = codec.processor.encode(sound)
    except Unusable as error:
        raise UserError(str(error)) from None
    kind = np.uint16 if codec.head.part.quantizer.codes_each <= 1 << 16 else np.uint32
    (codes,) = codec.codes([samples], codebooks)
    return CodedWave(codes.astype(kind), len(samples), codec.rate)


@with_usual_settings
def decompress(run: Run | str | Path, wave: CodedWave) -> Sound:
    """Decode the codes of ``compress`` with the same neural codec. Raises ``UserError`` if they are not of its form."""
    codec = _opened(run)
    part, (count, books) = codec.head.part.quantizer, wave.codes.shape
    if wave.rate != codec.rate or books > part.codebooks or int(wave.codes.max()) >= part.codes_each:
        raise UserError(
            f"the codes are of {books} codebooks, up to {int(wave.codes.max())}, at {wave.rate:,} Hz; this codec has "
            f"{part.codebooks} of {part.codes_each} codes at {codec.rate:,} Hz"
        )
    (samples,) = codec.decoded([wave.codes.astype(np.int64)])
    return Sound(samples[: min(wave.samples, count * codec.head.hop)], codec.rate)


def _opened(run: Run | str | Path) -> Codec:
    opened = load(run) if isinstance(run, (str, Path)) else run
    return Codec.of(opened.model, opened.recipe, opened.vocabulary, f"the run in {opened.folder}")
