"""Convert values of data in memory to plain data, which JSON can store."""

from __future__ import annotations

import datetime
import decimal
import os
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from qkv.data.graphs.raw import mapping_of
from qkv.data.records.images.pictures import as_uri, is_picture
from qkv.data.records.sounds.cells import is_sound_in_memory
from qkv.data.records.sounds.sound_files import as_uri as sound_uri
from qkv.data.records.values import Unusable

_MISSING = ("NAType", "NaTType")
"""Names of pandas' classes of missing values, which cannot be recognised by a comparison."""
_NAMED = {type(None): "None", bool: "true or false", int: "a number", float: "a number", str: "a text"}
_NAMED |= {dict: "a dict", bytes: "bytes"}


def plain(value: Any) -> Any:
    """Convert ``value`` to a text, number, truth value, or a list or dict of these; None if it is missing (None, NaN,
    NA).

    Arrays become lists, dates become ISO 8601 texts, images become PNG files, and sounds WAV files, encoded as
    text. For any other class,
    raises ``TypeError`` with the name of the class.
    """
    if is_missing(value):
        return None
    if isinstance(value, (str, bool, int, float)):
        return value if type(value) in (str, bool, int, float) else _built_in(value)
    if is_picture(value):
        return as_uri(value)
    if is_sound_in_memory(value):
        return sound_uri(value)
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if hasattr(value, "start_time") and hasattr(value, "ordinal"):  # a period of pandas
        text = str(value)
        return value.start_time.date().isoformat() if "/" in text else text
    if isinstance(value, (decimal.Decimal, uuid.UUID, os.PathLike)):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    graph = _graph(value)
    if graph is not None:
        return {name: plain(part) for name, part in graph.items() if part is not None}
    for method in ("to_list", "tolist", "as_py"):
        if hasattr(value, method):
            return plain(getattr(value, method)())
    raise TypeError(sort(value))


def _graph(value: Any) -> dict[str, Any] | None:
    """Convert a graph of networkx or torch_geometric to a mapping; None for other values. Raises ``TypeError`` for an
    invalid graph.
    """
    try:
        return mapping_of(value)
    except Unusable as error:
        raise TypeError(f"an invalid graph ({error})") from None


def is_missing(value: Any) -> bool:
    """Return True for None, NaN and the missing values of data frames."""
    if value is None or type(value).__name__ in _MISSING:
        return True
    return isinstance(value, (float, np.floating, np.datetime64)) and bool(value != value)


def sort(value: Any) -> str:
    """Describe the kind of a value, with an article, for messages: "a number", "an array"."""
    name = _NAMED.get(type(value))
    if name is None:
        kind = type(value).__name__
        name = f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"
    return name


def _built_in(value: Any) -> Any:
    """Convert a value of a subclass of a built-in type, such as ``numpy.str_`` or an enumeration, to the built-in
    type.
    """
    return next(kind(value) for kind in (bool, int, float, str) if isinstance(value, kind))
