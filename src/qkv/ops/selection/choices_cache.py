"""Cache of measured choices in the user's cache folder, shared by later processes.

There is one file per combination of versions, processor, settings and number of threads. A damaged file is ignored. If
the cache cannot be written, each process measures again. If two processes write at the same time, the choices of one
may be lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from qkv.ops.native import loading
from qkv.system.cache import cache_folder
from qkv.system.files import write_file
from qkv.system.processor import processor_name, settings

_read: dict[Path, dict[str, dict[str, Any]]] = {}


def environment() -> dict[str, Any]:
    """Return what timings depend on besides op and case: versions, processor, settings, threads, native libraries."""
    try:
        qkv = version("qkv")
    except PackageNotFoundError:  # imported from source, not installed
        qkv = "source"
    return {
        "qkv": qkv,
        "torch": torch.__version__,
        "processor": processor_name(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "settings": settings(),
        "native": loading.names(),
    }


def choices_file() -> Path:
    """Return the path of the cache file for this environment; the file may not exist."""
    digest = hashlib.sha256(json.dumps(environment(), sort_keys=True).encode()).hexdigest()
    return cache_folder() / "choices" / f"{digest[:16]}.json"


def recall(op: str, case: str) -> dict[str, Any] | None:
    """Return the cached choice of an earlier process for (op, case), as fields of ``Choice``; None if there is none."""
    path = choices_file()
    if path not in _read:
        _read[path] = _load(path)
    return _read[path].get(_key(op, case))


def remember(op: str, case: str, fields: dict[str, Any]) -> None:
    """Add the choice for (op, case) to the cache file, and preserve the choices that other processes have added."""
    path = choices_file()
    _read[path] = {**_load(path), _key(op, case): fields}
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps({"surroundings": environment(), "choices": _read[path]}, indent=1))


def forget() -> None:
    """Remove the cache file of this environment. Raises OSError if that fails."""
    path = choices_file()
    _read.pop(path, None)
    path.unlink(missing_ok=True)


def _key(op: str, case: str) -> str:
    return f"{op}: {case}"


def _load(path: Path) -> dict[str, dict[str, Any]]:
    try:
        entries = json.loads(path.read_bytes())["choices"]
        return {key: fields for key, fields in entries.items() if _whole(fields)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _whole(fields: Any) -> bool:
    types = {"twin": str, "reason": str, "gain": float}
    return (
        isinstance(fields, dict)
        and fields.keys() == types.keys()
        and all(isinstance(fields[k], kind) for k, kind in types.items())
    )
