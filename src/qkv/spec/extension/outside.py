"""Record of the parts of a run that are defined outside the package: their kind, file and the file's digest."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from qkv.spec.base import Part, Spec, words
from qkv.spec.register import registered
from qkv.system.errors import UserError

RECORD = "parts.json"
"""File of a run folder that lists its outside parts; a run that uses only the package's parts has no such file."""


def outside_parts(spec: Spec) -> list[dict[str, Any]]:
    """Return kind, slot, module, file and SHA-256 of the file of each part in ``spec`` from outside the package.

    A part that is specified in one file and implemented in another has an entry for each.
    """
    parts: dict[tuple[str, str, str], dict[str, Any]] = {}
    for part in _parts_in(spec):
        for module in dict.fromkeys((part.__module__, getattr(registered(part), "__module__", part.__module__))):
            if module.partition(".")[0] != "qkv":
                slot = _slot_of(part)
                parts[slot, part.kind, module] = {"kind": part.kind, "slot": slot, "module": module, **_file_of(module)}
    return [parts[key] for key in sorted(parts)]


def check_outside_parts(folder: Path) -> None:
    """Check that each part recorded for the run in ``folder`` is imported; warn if its file has changed.

    Raises ``UserError`` if a part is not imported, or if the record is invalid.
    """
    file = folder / RECORD
    for entry in _read(file) if file.is_file() else ():
        slots = {words(slot.__name__): slot for slot in Part.__subclasses__()}
        slot = slots.get(entry["slot"])
        part = slot.of_kind(entry["kind"]) if slot else None
        if part is None:
            raise UserError(_missing(folder, entry))
        now, then = _file_of(_module_like(part, entry["module"])), entry["sha256"]
        if then and now["sha256"] and now["sha256"] != then:
            was = "" if now["path"] == entry["path"] else f", then {entry['path']}"
            warnings.warn(
                f"{now['path']}{was}, which defines {entry['kind']!r}, has changed since {folder} was trained "
                f"(SHA-256 {now['sha256'][:12]}… now, {then[:12]}… then)",
                stacklevel=2,
            )


def _missing(folder: Path, entry: Mapping[str, Any]) -> str:
    """Return the error message for a part of a run that is not imported."""
    path, module, digest = entry["path"], entry["module"], entry["sha256"]
    what = f"{folder} was trained with the {entry['slot']} {entry['kind']!r}"
    if not path:
        return f"{what} of the module {module!r}, an interactive session; put it in a file, and name that with --import"
    name = module if "." in module else path if Path(path).is_file() else "FILE"
    where = f"{path} (SHA-256 {str(digest)[:12]}…)"
    return f"{what} of {where}, which is not imported; add --import {name} to the command, or import it in Python first"


def _parts_in(value: Any) -> Iterator[type[Part]]:
    """Yield the classes of all parts in a spec, or in a list or mapping of specs."""
    if isinstance(value, Part):
        yield type(value)
    if isinstance(value, Spec):
        for name in type(value).model_fields:
            yield from _parts_in(getattr(value, name))
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[Any]", value):
            yield from _parts_in(item)
    elif isinstance(value, Mapping):
        for item in cast("Mapping[str, Any]", value).values():
            yield from _parts_in(item)


def _slot_of(part: type[Part]) -> str:
    return next(words(base.__name__) for base in part.__mro__ if base in Part.__subclasses__())


def _module_like(part: type[Part], module: str) -> str:
    """Return the module that implements ``part`` if it is ``module``, which a record names; else its spec's module."""
    other: str = getattr(registered(part), "__module__", part.__module__)
    return other if module == other else part.__module__


def _file_of(module: str) -> dict[str, str | None]:
    """Return path and SHA-256 of a module's file; both None if it has no file, as in an interactive session."""
    file = getattr(sys.modules.get(module), "__file__", None)
    path = Path(file).resolve() if file else None
    if path is None or not path.is_file():
        return {"path": None, "sha256": None}
    import hashlib

    return {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _read(file: Path) -> list[dict[str, Any]]:
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    names, may_be_absent = {"kind", "slot", "module"}, {"path", "sha256"}
    if not isinstance(content, list) or not all(
        isinstance(entry, dict)
        and entry.keys() >= names | may_be_absent
        and all(isinstance(entry[name], str) for name in names)
        and all(isinstance(entry[name], str | None) for name in may_be_absent)
        for entry in cast("list[Any]", content)
    ):
        raise UserError(f"{file} should hold a list of parts, each with a kind, slot, module, path and sha256")
    return cast("list[dict[str, Any]]", content)
