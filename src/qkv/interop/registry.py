"""Register of published families.

A family outside of the package registers itself when its module is imported, see ``qkv.spec.extension.imports``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.interop.unsupported import NEEDS
from qkv.spec.extension.imports import import_more
from qkv.spec.register import Register
from qkv.system.errors import UserError, nearest

_FAMILIES: Register[str, Family] = Register("qkv.interop.families")


def register(*several: Family) -> None:
    """Register families by their names."""
    for family in several:
        _FAMILIES[family.name] = family


def families() -> list[Family]:
    """Return all families, each after its ``base``, in alphabetical order otherwise."""
    return sorted(_FAMILIES.all(), key=lambda family: (_depth(family), family.name))


def find_family(name: str) -> Family | None:
    """Return the family with this name; None if there is none."""
    return _FAMILIES.find(name)


def families_by_type() -> dict[str, Family]:
    """Return the families by ``model_type``."""
    return {name: family for family in families() for name in family.model_types}


def choose(config: Config) -> tuple[Family, str]:
    """Return (family, name of the architecture) of a config.

    Raises ``UserError`` that suggests the nearest supported name, or says what an unsupported published model would
    need.
    """
    if config.values.get("model_type") not in families_by_type():
        import_more()
        _refuse_unsupported(config, "model_type", config.values.get("model_type"))
    family: Family = config.word("model_type", allowed=families_by_type())
    named = config.items("architectures")
    architecture = str(named[0]) if named else next(iter(family.architectures))
    if architecture not in family.architectures:
        _refuse_unsupported(config, "the architecture", architecture)
        raise UserError(
            f"{config.source}: the architecture {architecture!r} is not supported for {family.name}; "
            f"{nearest(architecture, family.architectures)}"
        )
    return family, architecture


def fixed_settings(config: Config) -> Mapping[str, Any]:
    """Return the generation settings that the published code of a config's family uses, whatever its files say."""
    family = families_by_type().get(str(config.values.get("model_type")))
    return {} if family is None else family.settings(config)


def _refuse_unsupported(config: Config, key: str, name: object) -> None:
    """Raise ``UserError`` if ``name``, the value of ``key``, is a published model that is not supported."""
    if isinstance(name, str) and name in NEEDS and name not in families_by_type():
        raise UserError(f"{config.source}: {key} is {name!r}, which qkv does not support; it needs: {NEEDS[name]}")


def _depth(family: Family) -> int:
    base = find_family(family.base) if family.base else None
    return 0 if base is None else 1 + _depth(base)
