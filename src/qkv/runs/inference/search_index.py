"""Index of the texts in a file: their embedding vectors on disk, scaled to length 1."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qkv.runs.run import Run
from qkv.runs.storage.files import clear_errors, digest, sums, sums_of
from qkv.system.cache import cache_folder
from qkv.system.files import new_file

VERSION = 2
_NAME = "vectors"
_LENGTH = 8
"""Number of bytes at the beginning of a safetensors file that store the length of its header."""
_DIGITS = 64
"""Number of hexadecimal digits of a checksum."""


def index_path(parts: dict[str, Any]) -> Path:
    """Return the path in the cache of the index for ``parts``: one text file, one model and its settings."""
    name = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
    return cache_folder() / "search" / f"{name}.safetensors"


def model_digest(run: Run) -> str:
    """Compute a digest of the weights, model spec and tokenizer of a run, which determine the vectors of all texts."""
    from qkv.runs.storage.checkpoint import weights

    tensors = {name: tensor.detach().cpu() for name, tensor in weights(run.model).items()}
    spec = {"model": run.recipe.model.to_dict(), "tokenizer": run.vocabulary.tokenizer.to_json()}
    return digest(tensors, spec, sums)


def read_index(path: Path, key: str) -> np.ndarray | None:
    """Read the vectors (texts, D), memory-mapped from the file ``path``; None if it is missing, damaged or has another
    ``key``.

    The checksum is verified, which reads the whole file once; each search does that anyway.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH), "little")
            header = json.loads(file.read(min(length, 1 << 20)))
        shape = tuple(int(size) for size in header[_NAME]["shape"])
        fits = header["__metadata__"]["key"] == key and len(shape) == 2
        if not fits or path.stat().st_size != _LENGTH + length + 4 * shape[0] * shape[1]:
            return None
        vectors = np.memmap(path, "<f4", "r", _LENGTH + length, shape)
        return vectors if header["__metadata__"]["sums"] == _checksum(key, vectors) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def write_index(path: Path, key: str, count: int, width: int, blocks: Iterable[np.ndarray]) -> None:
    """Write the vectors in ``blocks``, arrays (texts, ``width``) with ``count`` rows in total, to a safetensors file.

    The vectors are scaled to length 1. The file has a temporary name until it is complete; the checksum is then written
    into its header. Raises ``UserError`` on disk errors.
    """
    header = _header(key, count, width, "0" * _DIGITS)
    with clear_errors(f"the index {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as partial:
            with partial.open("wb") as file:
                file.write(header)
                for block in blocks:
                    file.write(unit(block).tobytes())
            _seal(partial, key, count, width, len(header))


def _header(key: str, count: int, width: int, checksum: str) -> bytes:
    """Build the header of a safetensors file, preceded by its length; it has the same number of bytes for every
    checksum.
    """
    entry = {"dtype": "F32", "shape": [count, width], "data_offsets": [0, 4 * count * width]}
    content = json.dumps({"__metadata__": {"key": key, "sums": checksum}, _NAME: entry}).encode()
    content += b" " * (-len(content) % 8)
    return len(content).to_bytes(_LENGTH, "little") + content


def _seal(path: Path, key: str, count: int, width: int, begin: int) -> None:
    """Write the checksum of the vectors, which begin at byte ``begin``, into the header of a complete file.

    If the file has another size, because the texts changed meanwhile, it gets no checksum and is never used.
    """
    if path.stat().st_size != begin + 4 * count * width:
        return
    checksum = _checksum(key, np.memmap(path, "<f4", "r", begin, (count, width)))
    with path.open("r+b") as file:
        file.write(_header(key, count, width, checksum))


def _checksum(key: str, vectors: np.ndarray) -> str:
    """Compute the checksum of an index from ``key``, the shape, and ``sums_of`` of the vectors."""
    total = hashlib.sha256(f"{key} {list(vectors.shape)}".encode())
    total.update(sums_of(vectors.reshape(-1).view(np.uint8)))
    return total.hexdigest()


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors to length 1 along the last axis, float32 in little-endian order; zeros stay zero."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
    return np.ascontiguousarray(vectors / np.where(norms > 0, norms, 1.0), dtype="<f4")


def nearest_rows(vectors: np.ndarray, queries: np.ndarray, top: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (scores, row numbers), each (Q, ``top``): the vectors with the largest scalar products with each query,
    best first.

    ``vectors`` (N, D), ``queries`` (Q, D). Among equal scores, the earlier row comes first. ``rows`` vectors are read
    at a time.
    """
    scores = np.zeros((len(queries), 0), np.float32)
    places = np.zeros((len(queries), 0), np.int64)
    for begin, block in _blocks(vectors, rows):
        products = queries @ block.T
        here = np.broadcast_to(np.arange(begin, begin + len(block)), products.shape)
        scores, places = np.concatenate([scores, products], 1), np.concatenate([places, here], 1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
        scores, places = np.take_along_axis(scores, order, 1), np.take_along_axis(places, order, 1)
    return scores, places


def _blocks(vectors: np.ndarray, rows: int) -> Iterator[tuple[int, np.ndarray]]:
    for begin in range(0, len(vectors), rows):
        yield begin, np.asarray(vectors[begin : begin + rows])
