"""Former names of modules and functions, which still work with a ``DeprecationWarning`` that tells the new name."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES: dict[str, tuple[str, ...]] = {
    "qkv.library": ("qkv.api.recipes", "qkv.api.functions", "qkv.runs.save"),
    "qkv.training.run": ("qkv.runs.run", "qkv.runs.load", "qkv.runs.evaluation", "qkv.runs.predict"),
    "qkv.training.embed": ("qkv.runs.embed",),
    "qkv.tasks.material": ("qkv.tasks.dataset",),
}
"""Former module names, and the modules in which their names are now."""
NAMES = {"Material": "Dataset", "TextMaterial": "TextDataset", "ExampleMaterial": "ExampleDataset"}
"""Former class names of these modules, and the names that they have now."""


class Moved:
    """Import hook for the former module names in ``MODULES``.

    Each imports as an empty module whose attributes are looked up in the modules that replaced it. It has a finder's
    and a loader's methods without their base classes, because ``importlib.abc`` takes 10 ms to import.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Import spec of a former module; None for all other names."""
        return ModuleSpec(fullname, self) if fullname in MODULES else None  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """None: the import system creates an ordinary module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Give the module a ``__getattr__`` that looks names up in the modules that replaced it."""
        homes = MODULES[module.__name__]

        def found(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            present = NAMES.get(name, name)
            for home in map(import_module, homes):
                if hasattr(home, present):
                    warn_renamed(f"{module.__name__}.{name}", f"{home.__name__}.{present}")
                    return getattr(home, present)
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

        module.__getattr__ = found  # type: ignore[method-assign]


def install() -> None:
    """Register the import hook with ``sys.meta_path``, once."""
    if not any(isinstance(finder, Moved) for finder in sys.meta_path):
        sys.meta_path.append(Moved())


def renamed(module: str, names: Mapping[str, str]) -> Any:
    """Make the ``__getattr__`` of ``module`` for its former names; ``names``: former name -> new name."""

    def found(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(f"{module}.{name}", f"{module}.{names[name]}")
        return getattr(sys.modules[module], names[name])

    return found


def warn_renamed(old: str, new: str) -> None:
    """Warn that the name ``old`` is now ``new``."""
    import warnings

    warnings.warn(f"{old} is now {new}; the old name works in this version only", DeprecationWarning, stacklevel=3)
