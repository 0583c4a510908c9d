"""Registers that modules fill when they are imported.

They hold implementations of parts, published families, and forms of tool calls.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Hashable
from importlib import import_module
from typing import Any, TypeVar

from qkv.spec.base import Part
from qkv.system.errors import UserError

C = TypeVar("C", bound=Callable[..., Any])
P = TypeVar("P", bound=Part)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_imported: set[str] = set()
_importing: set[str] = set()
"""Packages that are being imported; a module may look up a part during its import, which must not start it again."""


class Register(dict[K, V]):
    """Values by key, added by modules when they are imported.

    packages: packages whose modules are all imported before a value is looked up, so that no list has to name them.
        Modules outside of these packages must be imported by the user.
    """

    def __init__(self, *packages: str):
        super().__init__()
        self.packages = packages

    def find(self, key: K) -> V | None:
        """Return the value of ``key``, or None; import ``packages`` if the key is missing."""
        if key not in self:
            import_all(*self.packages)
        return self.get(key)

    def all(self) -> list[V]:
        """Return every value, after the import of ``packages``."""
        import_all(*self.packages)
        return list(self.values())


PARTS: Register[type[Part], Any] = Register()
"""Implementation of each part, the class or function that builds it, by the part's spec class."""
_WITH: Register[tuple[type[Part], type[Part]], Any] = Register()
"""Implementations of a part in combination with another part, such as a task on the values of a processor."""


def implements(*parts: type[Part], of: type[Part] | None = None) -> Callable[[C], C]:
    """Register the decorated class or function as the implementation of the spec classes ``parts``.

    Used as ``@implements(spec.GRU)``. Its call signature is that of the slot: see ``build_branch``, ``build_norm``,
    ``build_task``. ``of``: class of another part; the implementation then applies only where ``parts`` are used with
    that part. Example: ``@implements(spec.NextToken, of=spec.ImageCodes)``, a task on the values of a processor.
    """

    def register(target: C) -> C:
        for part in parts:
            if of is None:
                PARTS[part] = target
            else:
                _WITH[part, of] = target
        return target

    return register


def implementation(part: Part, *packages: str, of: Part | None = None) -> Any:
    """Return the implementation registered for the class of ``part``. Raises ``UserError`` if there is none.

    ``packages``: packages whose modules are imported first if no implementation is registered yet or ``of`` is given.
    ``of``: other part with which ``part`` is used, see ``implements``.
    """
    kind = type(part)
    if kind not in PARTS or of is not None:
        import_all(*packages)
    pairs = ((kind, other) for other in type(of).__mro__)
    target = next((_WITH[pair] for pair in pairs if pair in _WITH), PARTS.get(kind))
    if target is None:
        raise UserError(
            f"no module implements {part.kind!r}; import the file that does, or mark it with "
            f"@implements({kind.__name__})"
        )
    return target


def registered(part: type[Part]) -> Any:
    """Return the implementation of the spec class ``part`` if its module is already imported; else None."""
    return PARTS.get(part)


def implementations(slot: type[P], *packages: str) -> dict[type[P], Any]:
    """Return the implementation of every part of a slot, by spec class, after importing all modules of ``packages``."""
    import_all(*packages)
    return {part: target for part, target in PARTS.items() if issubclass(part, slot)}


def import_all(*packages: str) -> None:
    """Import every module of ``packages`` and of their subpackages, so that parts in new files register themselves.

    If the import of a package fails, the next call tries it again.
    """
    for package in packages:
        if package not in _imported and package not in _importing:
            _importing.add(package)
            try:
                for module in pkgutil.iter_modules(import_module(package).__path__):
                    import_module(f"{package}.{module.name}")
                    if module.ispkg:
                        import_all(f"{package}.{module.name}")
                _imported.add(package)
            finally:
                _importing.discard(package)
