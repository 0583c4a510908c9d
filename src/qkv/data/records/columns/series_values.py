"""Convert the series of a row to an array, from lists of numbers or of steps, channels by name, text, or arrays."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qkv.data.records.values import LARGEST_NUMBER, Unusable
from qkv.spec.signals.series import LONGEST

_BETWEEN = re.compile(r"[\s,;]+")
_LOOKED_AT = 20
"""Number of items that are examined to recognise a list of numbers."""


def is_series(value: Any) -> bool:
    """Return True for a list or array of numbers or of steps with several channels, also if the list is JSON text."""
    if isinstance(value, str):
        if not value.lstrip().startswith("["):
            return False
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return False
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "iuf" and value.ndim in (1, 2)
    return isinstance(value, (list, tuple)) and _of_numbers(value)


def _of_numbers(value: Sequence[Any]) -> bool:
    some = [each for each in value[:_LOOKED_AT] if each is not None]
    if some and all(isinstance(each, (list, tuple)) for each in some):
        return all(each and _of_scalars(each) for each in some)
    return _of_scalars(some)


def _of_scalars(value: Sequence[Any]) -> bool:
    some = [each for each in value[:_LOOKED_AT] if each is not None]
    return bool(some) and all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in some)


def channel_names(value: Any) -> tuple[str, ...] | None:
    """Return the names of the channels of a raw series; None if it has none."""
    return tuple(map(str, value)) if isinstance(value, Mapping) else None


def array_of(value: Any, names: Sequence[str] = ()) -> np.ndarray:
    """Convert a raw series to values (T, C) in double precision, NaN where a value is missing.

    ``names``: order of the channels of a mapping. Raises ``Unusable`` for a value that is not a series.
    """
    if isinstance(value, Mapping):
        return _of_channels(value, names)
    if isinstance(value, str):
        value = _parsed(value)
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise Unusable(_fault(value)) from None
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise Unusable(f"the series has the shape {array.shape}, not (steps,) or (steps, channels)")
    if not array.size:
        raise Unusable("the series is empty")
    if len(array) > LONGEST:
        raise Unusable(f"the series has {len(array):,} steps, more than {LONGEST:,}")
    if np.isnan(array).all():
        raise Unusable("the series holds no number")
    if np.abs(np.nan_to_num(array, nan=0.0, posinf=math.inf)).max() > LARGEST_NUMBER:
        raise Unusable(f"the series holds a number that is infinite or exceeds {LARGEST_NUMBER:g}")
    return array


def _of_channels(value: Mapping[Any, Any], names: Sequence[str]) -> np.ndarray:
    arrays = {str(name): array_of(each) for name, each in value.items()}
    if not arrays:
        raise Unusable("the series is empty")
    if names and set(names) != set(arrays):
        raise Unusable(f"the series has the channels {', '.join(arrays)}, and the model reads {', '.join(names)}")
    lengths = {name: len(each) for name, each in arrays.items()}
    if len(set(lengths.values())) > 1:
        short, long = min(lengths, key=lengths.__getitem__), max(lengths, key=lengths.__getitem__)
        raise Unusable(f"the channel {short!r} has {lengths[short]:,} steps and {long!r} has {lengths[long]:,}")
    wide = next((name for name, each in arrays.items() if each.shape[1] != 1), None)
    if wide is not None:
        raise Unusable(f"the channel {wide!r} is not a list of numbers")
    return np.concatenate([arrays[name] for name in names or arrays], 1)


def _parsed(text: str) -> Any:
    """Parse the numbers in a text: a list in JSON, or numbers separated by spaces, commas or semicolons."""
    if text.lstrip().startswith("["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise Unusable(f"the series {text[:40]!r} is not a list in JSON") from None
    return [
        part if part.lower() not in ("", "nan", "na", "null", "none") else None for part in _BETWEEN.split(text.strip())
    ]


def _fault(value: Any) -> str:
    """Return the reason why a value is not a series of numbers."""
    if not isinstance(value, (list, tuple)):
        return f"the series is {type(value).__name__}, not a list of numbers"
    nested = [isinstance(each, (list, tuple)) for each in value]
    if all(nested) and len({len(each) for each in value}) > 1:
        few, many = min(map(len, value)), max(map(len, value))
        return f"one step of the series has {few} channels and another has {many}"
    if any(nested) and not all(nested):
        return "the series has both single numbers and lists"
    flat = [part for each in value for part in (each if isinstance(each, (list, tuple)) else [each])]
    wrong = next((each for each in flat if not _is_number(each)), None)
    return f"the series holds {str(wrong)[:40]!r}, which is not a number"


def _is_number(value: Any) -> bool:
    try:
        return value is None or math.isfinite(float(value)) or True
    except (TypeError, ValueError, OverflowError):
        return False
