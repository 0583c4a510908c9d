"""Register of the implementation of each part: the class or function that a spec's class stands for."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from qkv.spec.base import Part
from qkv.spec.errors import UserError

C = TypeVar("C", bound=Callable[..., Any])
P = TypeVar("P", bound=Part)
_REGISTER: dict[type[Part], Any] = {}
_SPECIAL: dict[tuple[type[Part], type[Part]], Any] = {}
"""Implementations of parts where they are used with another part, such as a task on the values of a processor."""
_imported: set[str] = set()
_importing: set[str] = set()
"""Packages whose import is under way, since a module may look up a part while it is imported."""


def implements(*parts: type[Part], of: type[Part] | None = None) -> Callable[[C], C]:
    """Register the decorated class or function as the implementation of the spec classes ``parts``.

    Used as ``@implements(spec.GRU)``. Its call signature is that of the slot: see ``build_branch``, ``build_norm``,
    ``build_task``. ``of``: class of another part, if the implementation is that of ``parts`` where they are used with
    it, as ``@implements(spec.NextToken, of=spec.ImageCodes)``: a task on the values of a processor.
    """

    def register(found: C) -> C:
        for part in parts:
            if of is None:
                _REGISTER[part] = found
            else:
                _SPECIAL[part, of] = found
        return found

    return register


def implementation(part: Part, *packages: str, of: Part | None = None) -> Any:
    """Implementation registered for the class of ``part``. Raises ``UserError`` if there is none.

    ``packages``: imported with all their modules if no implementation is registered yet. ``of``: other part with which
    it is used, see ``implements``.
    """
    if type(part) not in _REGISTER or of is not None:
        import_all(*packages)
    pairs = ((type(part), kind) for kind in type(of).__mro__)
    special = next((_SPECIAL[pair] for pair in pairs if pair in _SPECIAL), None)
    if special is not None:
        return special
    if type(part) not in _REGISTER:
        raise UserError(
            f"no module implements {part.kind!r}; import the file that does, "
            f"or mark it with @implements({type(part).__name__})"
        )
    return _REGISTER[type(part)]


def registered(part: type[Part]) -> Any:
    """Implementation of the spec class ``part`` if its module is imported; else None."""
    return _REGISTER.get(part)


def implementations(slot: type[P], *packages: str) -> dict[type[P], Any]:
    """Implementation of every part of a slot, by spec class, after the import of all modules of ``packages``."""
    import_all(*packages)
    return {part: found for part, found in _REGISTER.items() if issubclass(part, slot)}


def import_all(*packages: str) -> None:
    """Import every module of ``packages`` and of packages in them, so that parts in new files register themselves
    without being listed.

    A package whose import failed is tried again by the next call.
    """
    for package in packages:
        if package not in _imported and package not in _importing:
            _importing.add(package)
            try:
                for found in pkgutil.iter_modules(import_module(package).__path__):
                    import_module(f"{package}.{found.name}")
                    if found.ispkg:
                        import_all(f"{package}.{found.name}")
                _imported.add(package)
            finally:
                _importing.discard(package)
