"""Read sounds: files, bytes, arrays with a rate, and data URIs, as mono samples at a rate."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.records.sounds.cells import URI, Sound, is_sound_in_memory
from qkv.data.records.values import Unusable
from qkv.spec.signals.sound import HIGHEST_RATE, LOWEST_RATE
from qkv.system.errors import UserError

_BLOCK = 1 << 16
"""Number of samples of each channel that are read at once, so that a file of any length takes bounded memory."""
_INSTALL = 'reading sound needs the packages soundfile and soxr; install them with pip install "qkv[sound]"'


def sound_name(value: Any, unnamed: str = "the sound") -> str:
    """Return the name of a sound file, for messages and tables; ``unnamed`` for a sound in memory."""
    if isinstance(value, Path):
        return str(value)
    return value if isinstance(value, str) and not value.startswith(URI) else unnamed


def read_sound(value: Any, rate: int | None = None, longest: float | None = None) -> Sound:
    """Return the sound of a raw value, averaged over channels and resampled to ``rate`` Hz, by default unchanged.

    ``value``: a file name, its bytes, a data URI, ``Sound``, a pair (array (S), (S, C) or (C, S), rate), or a mapping
    with ``array`` and ``sampling_rate``. At most ``longest`` seconds are read. Raises ``Unusable`` for what cannot be
    read as sound, and ``UserError`` without the packages that read files.
    """
    name = sound_name(value)
    with _source(value) as (native, blocks):
        target = native if rate is None else rate
        limit = None if longest is None else round(longest * target)
        read, count, cut = list[np.ndarray](), 0, False
        for block in resampled(blocks, native, target):
            read.append(block)
            count += len(block)
            if limit is not None and count > limit:
                cut = True
                break
    samples = np.concatenate(read)[:limit] if read else np.zeros(0, np.float32)
    if not len(samples):
        raise Unusable(f"{name} has no samples")
    if not np.isfinite(samples).all():
        raise Unusable(f"{name} has samples that are no finite numbers")
    return Sound(samples, target, cut)


def sound_blocks(value: Any, rate: int) -> Iterator[np.ndarray]:
    """Yield the mono samples of a sound at ``rate`` Hz in blocks, so that a sound of any length takes bounded memory.

    Raises ``Unusable`` and ``UserError`` as ``read_sound``.
    """
    with _source(value) as (native, blocks):
        for block in resampled(blocks, native, rate):
            if not np.isfinite(block).all():
                raise Unusable(f"{sound_name(value)} has samples that are no finite numbers")
            yield block


def sound_length(value: Any) -> tuple[float, int]:
    """Return (seconds, rate in Hz) of a sound, without reading its samples if it is a file. Raises ``Unusable``."""
    memory = _in_memory(value)
    if memory is not None:
        return memory.samples.shape[0] / memory.rate, memory.rate
    with _opened(value) as file:
        return file.frames / file.samplerate, file.samplerate


def as_uri(value: Any) -> str:
    """Encode a sound in memory as text: a WAV file of 32-bit floats in base64, as a data URI."""
    return f"{URI}wav;base64,{base64.b64encode(_float_wav(read_sound(value))).decode()}"


def player_uri(sound: Sound) -> str:
    """Encode a sound for players in pages: a WAV file of 16 bits in base64, as a data URI."""
    return f"{URI}wav;base64,{base64.b64encode(sound_bytes(sound)).decode()}"


def _float_wav(sound: Sound) -> bytes:
    """Return a WAV file of 32-bit floats; libsndfile's has the time of writing in it, so that digests would differ."""
    data = sound.samples.astype("<f4").tobytes()
    form = struct.pack("<4sIHHIIHHH", b"fmt ", 18, 3, 1, sound.rate, 4 * sound.rate, 4, 32, 0)
    fact = struct.pack("<4sII", b"fact", 4, len(sound.samples))
    body = b"WAVE" + form + fact + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI", b"RIFF", len(body)) + body


def sound_bytes(sound: Sound, subtype: str = "PCM_16", form: str = "WAV") -> bytes:
    """Return the bytes of a mono sound file. ``subtype`` and ``form``: names of libsndfile, such as WAV and FLAC."""
    soundfile = _soundfile()
    buffer = io.BytesIO()
    soundfile.write(buffer, sound.samples, sound.rate, format=form, subtype=subtype)
    return buffer.getvalue()


def _soundfile() -> Any:
    """Return the module soundfile. Raises ``UserError`` if it is not installed."""
    try:
        import soundfile
    except ImportError:
        raise UserError(_INSTALL) from None
    return soundfile


@contextmanager
def _source(value: Any) -> Iterator[tuple[int, Iterator[np.ndarray]]]:
    """Context manager that yields (rate, blocks of mono samples) of a raw value."""
    memory = _in_memory(value)
    if memory is not None:
        _check_rate(memory.rate, sound_name(value))
        yield memory.rate, iter((memory.samples,))
        return
    with _opened(value) as file:
        _check_rate(file.samplerate, sound_name(value))
        yield file.samplerate, _blocks(file, sound_name(value))


@contextmanager
def _opened(value: Any) -> Iterator[Any]:
    """Context manager that opens a sound file. Raises ``Unusable``."""
    soundfile, name = _soundfile(), sound_name(value)
    try:
        file = soundfile.SoundFile(_handle(value))
    except FileNotFoundError:
        raise Unusable(f"there is no file {name}") from None
    except soundfile.LibsndfileError as error:
        raise Unusable(f"{name} is no sound file that can be read: {_reason(error)}") from None
    except (OSError, ValueError, TypeError) as error:
        raise Unusable(f"{name} cannot be read: {_reason(error)}") from None
    with file:
        yield file


def _handle(value: Any) -> Any:
    """Return what soundfile opens: a path, or a file in memory. Raises ``ValueError``, ``OSError`` or ``TypeError``."""
    if isinstance(value, bytes):
        return io.BytesIO(value)
    if isinstance(value, str) and value.startswith(URI):
        return io.BytesIO(base64.b64decode(value.partition(",")[2], validate=True))
    if not isinstance(value, (str, Path)):
        raise TypeError(f"{type(value).__name__} is no sound")
    path = Path(value).expanduser()
    if path.is_dir():
        raise ValueError("it is a directory")
    if path.stat().st_size == 0:
        raise ValueError("it is empty")
    return str(path)


def _blocks(file: Any, name: str) -> Iterator[np.ndarray]:
    soundfile = _soundfile()
    while True:
        try:
            block = file.read(_BLOCK, dtype="float32", always_2d=True)
        except (soundfile.LibsndfileError, RuntimeError) as error:
            raise Unusable(f"{name} is damaged: {_reason(error)}") from None
        if len(block):
            yield block.mean(1, dtype=np.float64).astype(np.float32)
        if len(block) < _BLOCK:
            return


def resampled(blocks: Iterator[np.ndarray], native: int, rate: int) -> Iterator[np.ndarray]:
    """Yield blocks at ``rate`` Hz, from blocks at ``native`` Hz; by a band-limited filter (soxr, quality HQ)."""
    if native == rate:
        yield from blocks
        return
    try:
        import soxr
    except ImportError:
        raise UserError(_INSTALL) from None
    stream = soxr.ResampleStream(native, rate, 1, dtype="float32", quality="HQ")
    for block in blocks:
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


def _in_memory(value: Any) -> Sound | None:
    """Return a sound that is held in memory; None for a file or its bytes. Raises ``Unusable`` for a wrong shape."""
    if not is_sound_in_memory(value) or isinstance(value, Sound):
        return value if isinstance(value, Sound) else None
    samples, rate = (value["array"], value["sampling_rate"]) if isinstance(value, Mapping) else value
    return Sound(_mono(np.asarray(samples)), int(rate))


def _mono(samples: np.ndarray) -> np.ndarray:
    """Return mono samples (S) in float32 of an array (S), (S, C) or (C, S); integers are scaled to -1 to 1."""
    if samples.ndim not in (1, 2) or samples.dtype.kind not in "iuf":
        raise Unusable(
            f"the sound has the shape {samples.shape} of {samples.dtype}, not (samples) or (samples, channels)"
        )
    if samples.dtype.kind in "iu":
        middle = 0 if samples.dtype.kind == "i" else 2 ** (8 * samples.dtype.itemsize - 1)
        scale = 2.0 ** (8 * samples.dtype.itemsize - 1)
        samples = (samples.astype(np.float64) - middle) / scale
    if samples.ndim == 2:
        samples = samples.mean(0 if samples.shape[0] < samples.shape[1] else 1)
    return samples.astype(np.float32)


def _check_rate(rate: int, name: str) -> None:
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise Unusable(f"{name} has a rate of {rate:,} Hz; rates from {LOWEST_RATE} to {HIGHEST_RATE:,} Hz are read")


def _reason(error: Exception) -> str:
    text = getattr(error, "error_string", None) or getattr(error, "strerror", None) or str(error)
    return (str(text) or type(error).__name__).splitlines()[0].rstrip(".").lower()
