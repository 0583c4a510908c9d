"""Images as sequences of the codes of a trained autoencoder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from qkv.data.cache import stored
from qkv.data.processors.coders import AT_ONCE, CodesProcessor, CodingModel
from qkv.data.processors.images import ImageProcessor
from qkv.data.records.images.pictures import URI
from qkv.data.records.values import Unusable
from qkv.layers.signal import Signal
from qkv.models.heads.codebook import CodebookDecoder
from qkv.spec.register import implements
from qkv.spec.signals.image_sequences import ImageCodes, ImageSequence

_CODES, _REASONS = "codes.npy", "unusable.json"


class Autoencoder(CodingModel[ImageProcessor]):
    """Trained image autoencoder."""

    kinds, name = ("codebook",), "an autoencoder of images, a run with the task 'autoencoding'"

    @property
    def head(self) -> CodebookDecoder:
        """Head of the model, which holds codebook and decoder."""
        head = self.model.head
        assert isinstance(head, CodebookDecoder)
        return head

    @torch.inference_mode()
    def codes(self, encoded: Sequence[np.ndarray]) -> np.ndarray:
        """Return the codes (B, N), in row-major order of the grid, of images that the processor has encoded."""
        signal = self.processor.signal(encoded)
        return self.head.ids(self.model.features(signal)[0]).to(torch.int32).numpy()

    @torch.inference_mode()
    def decoded(self, codes: np.ndarray) -> list[np.ndarray]:
        """Decode codes (B, N), in row-major order of the grid, to images."""
        parts = torch.from_numpy(codes).long().split(AT_ONCE)
        return [image for part in parts for image in self.processor.restored(self.head.pixels(part))]


def order_of(spec: ImageSequence) -> np.ndarray:
    """Return, for each position of a sequence, its index in the grid in row-major order."""
    assert spec.grid is not None
    places = np.arange(spec.grid[0] * spec.grid[1]).reshape(spec.grid)
    return (places if spec.order == "rows" else places.T).flatten()


def identity_of(values: Sequence[Any]) -> str | None:
    """Return a digest of raw images: of the content of images in memory, and of names, sizes and times of files.

    None if an image is neither an array nor a file name or data URI.
    """
    total = hashlib.sha256()
    for value in values:
        if isinstance(value, np.ndarray):
            total.update(f"{value.shape} {value.dtype}".encode())
            total.update(np.ascontiguousarray(value).data)
        elif isinstance(value, (str, Path)):
            path = Path(value).expanduser()
            if str(value).startswith(URI):
                total.update(str(value).encode())
            elif path.is_file():
                stat = path.stat()
                total.update(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode())
            else:
                total.update(f"no file {path}".encode())
        else:
            return None
    return total.hexdigest()


class _Stored(NamedTuple):
    """Codes (B, N) of images, and the reason for each image that cannot be read, by its index."""

    codes: np.ndarray
    reasons: dict[str, str]


def _loaded(home: Path, count: int) -> _Stored | None:
    """Load the codes stored in a cache folder; None if they are missing or damaged."""
    try:
        codes = np.load(home / _CODES, allow_pickle=False)
        reasons = json.loads((home / _REASONS).read_text(encoding="utf-8"))
    except (OSError, ValueError, EOFError):
        return None
    return _Stored(codes, reasons) if codes.ndim == 2 and len(codes) == count and codes.dtype == np.int32 else None


@implements(ImageCodes)
class ImageCodesProcessor(CodesProcessor[Autoencoder]):
    """Codes of images: a file name, an array or a Pillow image -> codes (N), in the scan order of the spec."""

    example = ImageProcessor.example
    coders = Autoencoder
    spec: ImageCodes

    def fitted(self, values: Sequence[Any]) -> ImageCodes:
        head = self.coder.head
        return self.spec.changed(codes=head.part.codes, grid=head.grid, digest=self.coder.digest)

    def encode_all(self, values: Sequence[Any]) -> Iterator[np.ndarray | Unusable]:
        """Yield encoded values in order. For many images, they are cached under the digests of the autoencoder and the
        images.
        """
        identity = identity_of(values) if len(values) > AT_ONCE and self.spec.digest is not None else None
        if identity is None:
            yield from super().encode_all(values)
            return
        key = hashlib.sha256(f"{self.spec.digest} {self.spec.order} {identity}".encode()).hexdigest()
        entry = stored("codes", key, lambda home: _loaded(home, len(values)), lambda home: self._write(home, values))
        for i, codes in enumerate(entry.codes):
            reason = entry.reasons.get(str(i))
            yield codes if reason is None else Unusable(reason)

    def _write(self, home: Path, values: Sequence[Any]) -> None:
        """Write the codes of all values, and the reasons for values that cannot be read, into the folder ``home``."""
        assert self.spec.places is not None
        codes, reasons = np.zeros((len(values), self.spec.places), np.int32), dict[str, str]()
        for i, outcome in enumerate(super().encode_all(values)):
            if isinstance(outcome, Unusable):
                reasons[str(i)] = str(outcome)
            else:
                codes[i] = outcome
        np.save(home / _CODES, codes)
        (home / _REASONS).write_text(json.dumps(reasons), encoding="utf-8")

    def coded(self, encoded: Sequence[np.ndarray]) -> np.ndarray:
        """Return the codes (B, N) of encoded images, in the scan order of the spec."""
        return np.ascontiguousarray(self.coder.codes(encoded)[:, order_of(self.spec)])

    def signal(self, encoded: Sequence[np.ndarray]) -> Signal:
        return Signal(torch.from_numpy(np.stack(encoded)).long())

    def images(self, codes: np.ndarray) -> list[np.ndarray]:
        """Decode sequences of codes (B, N) to images (H, W) or (H, W, 3)."""
        by_row = np.empty_like(codes)
        by_row[:, order_of(self.spec)] = codes
        return self.coder.decoded(by_row)
