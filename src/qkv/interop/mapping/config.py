"""Checked access to a ``config.json``: each missing, mistyped or unused key raises an error with one clear sentence."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from qkv.spec.base import LARGEST
from qkv.spec.model import MOST_LAYERS
from qkv.system.errors import UserError, closest, nearest, quoted


class Held(NamedTuple):
    """Contents of the weight files beside a config: number of tensors, total number of elements, names of tensors.

    The numbers are upper bounds of the sizes in the config. ``read``: function from a name to the tensor.
    """

    tensors: int
    numbers: int
    names: frozenset[str] = frozenset()
    read: Callable[[str], Tensor] | None = None


class Config:
    """Typed, checked access to the keys of a ``config.json``, in which null counts as missing.

    Every method raises ``UserError`` that names ``source`` and the key.
    """

    def __init__(self, values: Mapping[str, Any], source: str = "config.json", sizes: Held | None = None):
        self.values = {key: value for key, value in values.items() if value is not None}
        self.nulls = values.keys() - self.values.keys()
        self.source, self.held = source, sizes
        self.asked: set[str] = set()
        self.defaults: Mapping[str, Any] = {}
        self._tables: dict[str, Config] = {}
        self._open = False

    def assume(self, defaults: Mapping[str, Any]) -> None:
        """Set missing keys to ``defaults``, those of the family's published config class; null stays null."""
        self.defaults = defaults

    def rename(self, synonyms: Mapping[str, str]) -> None:
        """Rename the keys of ``synonyms`` to their values.

        If the config has both names, the synonym's value is used, as by the published config class.
        """
        for key in self.values.keys() & synonyms.keys():
            self.values[synonyms[key]] = self.values.pop(key)

    def has(self, key: str) -> bool:
        """Return True if the key has a value other than null, in the file or as a default set by ``assume``."""
        self.asked.add(key)
        return key in self.values or self._assumes(key)

    def says(self, key: str) -> bool:
        """Return True if the file itself has a value other than null for the key."""
        return key in self.values

    def _assumes(self, key: str) -> bool:
        return key in self.defaults and key not in self.values and key not in self.nulls

    def _value(self, key: str) -> Any:
        if self._assumes(key):
            return self.defaults[key]
        self._refuse_nonfinite(key)
        return self.values[key]

    def beside(self, name: str) -> bool:
        """Return True if the weight files beside the config contain a tensor with this name."""
        return self.held is not None and name in self.held.names

    def named(self, ending: str) -> list[str]:
        """Return the names of the tensors beside the config that end in ``ending``, in alphabetical order."""
        return sorted(name for name in (self.held.names if self.held else ()) if name.endswith(ending))

    def stored(self, name: str) -> Tensor | None:
        """Read the tensor with this name from the weight files beside the config; None if they lack it."""
        return self.held.read(name) if self.held and self.held.read and name in self.held.names else None

    def size(self, key: str, default: int | None = None) -> int:
        """Return the value of the key as a number of features, heads or table rows.

        It is at least 1, and at most the number of elements in the weight files.
        """
        return self._limited(key, default, self.held.numbers if self.held else None, "numbers")

    def layers(self, key: str, default: int | None = None) -> int:
        """Return the value of the key as a number of layers.

        It is at least 1, and at most the number of tensors in the weight files.
        """
        return self._limited(key, default, self.held.tensors if self.held else None, "tensors")

    def _limited(self, key: str, default: int | None, most: int | None, what: str) -> int:
        value, limit = self.integer(key, default), MOST_LAYERS if what == "tensors" else LARGEST
        if most is not None and value > most:
            clause = "is" if self.says(key) else "is missing, which means"
            raise UserError(
                f"{self.source}: {key} {clause} {value:,}, but the weight files beside it contain only {most:,} {what}"
            )
        if not 1 <= value <= limit:
            raise UserError(f"{self.source}: {key} is {value:,}, but it should be at least 1 and at most {limit:,}")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """Return the value of the key as an integer; ``default`` if missing."""
        return self._typed(key, default, (int,), "a whole number")

    def number(self, key: str, default: float | None = None) -> float:
        """Return the value of the key as a float; ``default`` if missing."""
        return float(self._typed(key, default, (int, float), "a number"))

    def optional(self, key: str, default: float | None) -> float | None:
        """Return the value of the key as a float, or None if it is null; ``default`` only if it is absent."""
        if key in self.nulls or (default is None and not self.has(key)):
            return None
        return self.number(key, default)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return the value of the key as a bool; ``default`` if missing."""
        return self._typed(key, default, (bool,), "true or false")

    def word(self, key: str, default: str | None = None, allowed: Mapping[str, Any] | None = None) -> Any:
        """Return the value of the key as a string; with ``allowed``, return what this string maps to there.

        ``default`` is such a string, too.
        """
        value = self._typed(key, default, (str,), "a text")
        if allowed is None:
            return value
        if value not in allowed:
            raise UserError(
                f"{self.source}: {key} is {quoted(value)}, which qkv does not support; {nearest(value, allowed)}"
            )
        return allowed[value]

    def items(self, key: str) -> list[Any]:
        """Return the value of the key as a list; empty if the key is missing."""
        return list(self._typed(key, [], (list,), "a list"))

    def table(self, key: str) -> Config:
        """Return the value of the key as a nested mapping with checked access; empty if the key is missing."""
        if key not in self._tables:
            self._tables[key] = Config(self._typed(key, {}, (dict,), "a mapping"), f"{self.source}: {key}")
        return self._tables[key]

    def fixed(self, key: str, only: Any, meaning: str) -> None:
        """Refuse every value of the key other than ``only``; a missing key is accepted.

        ``meaning``: what the key changes, for the error message.
        """
        if self.has(key) and self._value(key) != only:
            raise UserError(
                f"{self.source}: {key} is {quoted(self._value(key))}, but qkv supports only {only!r} here; "
                f"it changes {meaning}"
            )

    def leave_unread(self, ignored: Iterable[str] = (), refused: Mapping[str, str] | None = None) -> None:
        """Accept keys that were not read, as the published library accepts unknown keys; see ``unread``.

        Keys in ``refused`` (key -> what it changes in the published library) are refused. Misspelt keys are refused,
        too, that is, keys within two edits of a missing key that was read and is not in ``ignored``. If the correct key
        is present as well, the misspelt key changes nothing, and a warning names it.
        """
        self._open = True
        for key, changed in (refused or {}).items():
            if key in self.values and key not in self.asked:
                raise UserError(f"{self.source}: {key} is set, which qkv does not support; it changes {changed}")
        self.refuse_misspelt(ignored)
        for key, meant in self._misspelt(ignored):
            warnings.warn(f"{self.source}: the key {quoted(key)} is not read; {meant!r} is", stacklevel=2)

    def refuse_misspelt(self, ignored: Iterable[str] = ()) -> None:
        """Raise ``UserError`` for a key, also in a nested table, that looks like a misspelling of a missing key."""
        for table in self._tables.values():
            table.refuse_misspelt(ignored)
        for key, meant in self._misspelt(ignored):
            if meant not in self.values:
                raise UserError(
                    f"{self.source}: the key {quoted(key)} is unknown in this family, and {meant!r} is missing; did "
                    f"you mean {meant!r}? If not, delete the key"
                )

    def _misspelt(self, ignored: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield pairs of a key that no code has read, and a missing key within two edits that code looked up."""
        read = self.asked - set(ignored)
        for key in sorted(self.values.keys() - self.asked - set(ignored)):
            meant = closest(key, read)
            if meant is not None:
                yield key, meant

    @property
    def unread(self) -> list[str]:
        """Return the keys that were not read; keys of nested tables are named "table.key"."""
        inner = [f"{name}.{key}" for name, table in self._tables.items() if table._open for key in table.unread]
        return sorted([*(self.values.keys() - self.asked), *inner])

    def finish(self, ignored: Iterable[str]) -> None:
        """Refuse keys that were not read and are not in ``ignored``: they may change what the model computes."""
        unknown = sorted(self.values.keys() - self.asked - set(ignored))
        if unknown:
            keys = self.asked | set(ignored)
            raise UserError(
                f"{self.source}: the key {quoted(unknown[0])} is unknown in this family and may change what the model "
                f"computes; {_near(unknown[0], keys)}"
            )

    def _refuse_nonfinite(self, key: str) -> None:
        """Raise ``UserError`` for a number, at any depth, that is not finite or needs more than 64 bits."""
        wrong = next(_nonfinite(self.values[key]), None)
        if wrong is not None:
            raise UserError(
                f"{self.source}: {quoted(key)} contains {quoted(wrong)}; allowed: finite numbers of at most 64 bits"
            )

    def _typed(self, key: str, default: Any, kinds: tuple[type, ...], noun: str) -> Any:
        if not self.has(key):
            if default is None:
                raise UserError(f"{self.source}: the key {key!r} is missing; {_near(key, self.values)}")
            return default
        value = self._value(key)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise UserError(f"{self.source}: {key} is {quoted(value)}, but it should be {noun}")
        return value


def _nonfinite(value: Any) -> Iterator[int | float]:
    """Yield the numbers in a JSON tree that are not finite or need more than 64 bits."""
    if isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _nonfinite(inner)
    elif (isinstance(value, int) and value.bit_length() > 63) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        yield value


def _near(key: str, keys: Iterable[str]) -> str:
    clause = nearest(key, keys)
    return clause if clause.startswith("did you mean") else "there is no similar name"
