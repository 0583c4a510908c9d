"""Read the arrays of ``.npz`` files of graphs."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from qkv.data.corpora.text import TextSource
from qkv.system.errors import UserError


def arrays_of(text: TextSource) -> dict[str, np.ndarray]:
    """Read the arrays of an ``.npz`` file by name. Raises ``UserError`` for a damaged file, or one that holds
    objects.
    """
    try:
        with np.load(io.BytesIO(b"".join(text.raw())), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, MemoryError, AttributeError) as error:
        raise UserError(f"{text.name} is not an .npz file of plain arrays: {error}") from None


def feature_mapping(arrays: Mapping[str, np.ndarray], name: str) -> dict[str, Any]:
    """Return the entry ``features`` of a graph from the arrays of a file: packed bits, a dense matrix, or a sparse
    matrix.
    """
    if "feature_indptr" in arrays:
        parts = {key: needed(arrays, f"feature_{key}", name) for key in ("indptr", "indices", "values")}
        return {"features": {**parts, "num_features": int(needed(arrays, "num_features", name))}}
    if "features" not in arrays:
        return {}
    features = arrays["features"]
    if features.dtype == np.uint8 and "num_features" in arrays:
        features = np.unpackbits(features, axis=1)[:, : int(arrays["num_features"])]
    return {"features": features}


def needed(arrays: Mapping[str, np.ndarray], key: str, name: str) -> np.ndarray:
    """Return the array ``key`` of a file. Raises ``UserError`` if it is missing."""
    if key not in arrays:
        raise UserError(f"{name} has no array {key!r}; it has {', '.join(arrays) or 'none'}")
    return arrays[key]
