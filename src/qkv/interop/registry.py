"""Register of published families. A family outside of the package registers itself when its module is imported, see
``qkv.spec.extension.imports``.
"""

from __future__ import annotations

from qkv.interop.mapping.config import Config
from qkv.interop.mapping.family import Family
from qkv.spec.errors import UserError, nearest
from qkv.spec.extension.imports import import_more
from qkv.spec.register import Register

_FAMILIES: Register[str, Family] = Register("qkv.interop.families")


def register(*several: Family) -> None:
    """Register families by their names."""
    for family in several:
        _FAMILIES[family.name] = family


def families() -> list[Family]:
    """Return all families, in alphabetical order within each depth of extension, so that a family comes after its
    ``base``.
    """
    return sorted(_FAMILIES.all(), key=lambda family: (_depth(family), family.name))


def find_family(name: str) -> Family | None:
    """Return the family with this name; None if there is none."""
    return _FAMILIES.find(name)


def families_by_type() -> dict[str, Family]:
    """Return the family of each ``model_type``."""
    return {name: family for family in families() for name in family.model_types}


def choose(config: Config) -> tuple[Family, str]:
    """Return (family, name of the architecture) of a config. Raises ``UserError`` that suggests the nearest
    known name.
    """
    if config.values.get("model_type") not in families_by_type():
        import_more()
    family: Family = config.word("model_type", allowed=families_by_type())
    named = config.items("architectures")
    architecture = str(named[0]) if named else next(iter(family.architectures))
    if architecture not in family.architectures:
        raise UserError(
            f"{config.source}: the architecture {architecture!r} is not known for {family.name}; "
            f"{nearest(architecture, family.architectures)}"
        )
    return family, architecture


def _depth(family: Family) -> int:
    base = find_family(family.base) if family.base else None
    return 0 if base is None else 1 + _depth(base)
