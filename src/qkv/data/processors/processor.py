"""Base class of processors, which convert inputs other than text to signals."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from qkv.data.features.ngrams import Bag
from qkv.data.processors.augment import Mixed
from qkv.data.reading import identity_of, latest
from qkv.data.records.model import Role
from qkv.data.records.table import Table
from qkv.data.records.values import Unusable
from qkv.layers.signal import Signal
from qkv.spec.models.wide import Features, WidePath
from qkv.spec.processors import INPUT
from qkv.spec.processors import Processor as ProcessorSpec
from qkv.spec.register import implementation, implementations
from qkv.system.errors import UserError


class Encoded(NamedTuple):
    """Value that is encoded already, passed in place of a raw value so that it is not decoded twice."""

    encoded: Any


class Processor(ABC):
    """Base class of processors: raw value of a row (a file, an array) -> encoded value -> signal of several rows.

    ``spec``: settings; only a processor with a fitted spec encodes. A value is encoded once and kept in memory, so an
    encoded value is compact (pixels as uint8); ``signal`` converts it to the form that the front end reads.
    """

    example: ClassVar[str] = "…"
    """Example of an input on the command line."""
    simple: ClassVar[str] = "features"
    """Name of ``features`` in the metrics of the baseline, such as "pixels"."""

    signals_only: ClassVar[tuple[str, ...]] = ()
    """Fields of the spec that only ``signal`` and ``augmented`` read, so that encoded values do not depend on them."""
    strongest: ClassVar[type[Features]] = Features
    """Kind of wide path with the strongest features, which the baseline reads."""

    automatic: ClassVar[bool] = True
    """False if the processor is never chosen automatically, only by a recipe or an override."""

    def __init__(self, spec: Any):
        self.spec = spec

    @property
    def role(self) -> Role:
        """Role of the table column that holds the values. Raises ``UserError`` if the spec sets no role."""
        if self.spec.role is None:
            raise UserError(f"the spec of the processor {self.spec.kind!r} has no role; set the role of its column")
        return self.spec.role

    @classmethod
    def recognises(cls, source: str, table: Callable[[], Table | None]) -> bool:
        """Return True if the file or folder ``source`` holds values of this kind.

        ``table``: function that reads the source as a table of examples; it returns None if the source is not a table.
        """
        return False

    def role_of(self, name: str) -> Role:
        """Return the role of the input ``name``: ``role`` for a single input, else ``role`` renamed to ``name``."""
        return self.role if name == INPUT else self.role.rename(name)

    @abstractmethod
    def fitted(self, values: Sequence[Any]) -> ProcessorSpec:
        """Return the spec with all fields determined from ``values`` of the training split. Raises ``UserError``."""

    @abstractmethod
    def encode(self, value: Any) -> np.ndarray:
        """Convert a raw value to a compact array. Raises ``Unusable`` if the value cannot be read."""

    def read(self, value: Any) -> Any:
        """Encode a raw value, or return the content of an ``Encoded`` value. Raises ``Unusable``.

        A command encodes each file once: it caches the values encoded with the latest settings
        (``qkv.data.reading``). The cache needs no further memory, because the data set of a run holds the same values.
        """
        encoded = self.tried(value) if not isinstance(value, (str, Path)) else self._shared(value)
        if isinstance(encoded, Unusable):
            raise encoded.with_traceback(None)
        return encoded

    def tried(self, value: Any) -> Any:
        """Return the encoded value of a raw value, or an ``Unusable`` with the reason why it cannot be encoded."""
        try:
            return value.encoded if isinstance(value, Encoded) else self.encode(value)
        except Unusable as error:
            return error

    def _shared(self, value: str | Path) -> Any:
        shelf = latest(type(self), self._settings, dict[Any, Any])
        key = identity_of(value)
        if key not in shelf:
            shelf[key] = self.tried(value)
        return shelf[key]

    @cached_property
    def _settings(self) -> str:
        fields = self.spec.to_dict()
        return json.dumps({name: each for name, each in fields.items() if name not in self.signals_only})

    def encode_all(self, values: Sequence[Any]) -> Iterator[np.ndarray | Unusable]:
        """Yield the encoded values in order, or an ``Unusable`` error for a value that cannot be read; by default one
        by one.
        """
        for value in values:
            try:
                yield self.read(value)
            except Unusable as error:
                yield error

    def size(self, encoded: np.ndarray) -> int:
        """Return the number of positions of an encoded value, by which rows of similar length are batched."""
        return len(encoded)

    def span(self, encoded: Any, place: Sequence[int], tokenize: Callable[[str], list[int]]) -> list[int]:
        """Return the ids of an encoded value in a row of several inputs: by default ``place``, its placeholder ids.

        place: placeholder ids of one row of ``signal``.   tokenize: function from a text to token ids, in which special
        tokens count.
        """
        return list(place)

    @abstractmethod
    def signal(self, encoded: Sequence[np.ndarray]) -> Signal:
        """Build the signal of several rows from their encoded values."""

    def augmented(self, signal: Signal, rng: np.random.Generator) -> tuple[Signal, Mixed | None]:
        """Return (randomly changed training signal, mixing of its rows); by default, the signal is unchanged."""
        return signal, None

    def features(self, encoded: np.ndarray) -> np.ndarray | None:
        """Return features (F,) of an encoded value for a linear baseline; None if there are none."""
        return None

    def read_by(self, encoded: Any, part: WidePath) -> np.ndarray | None:
        """Return the features (F,) of an encoded value that the wide path ``part`` reads; None if there are none."""
        return self.features(encoded)

    def bag(self, encoded: Any, part: Any) -> Bag:
        """Return the bag of an encoded value for a wide path ``part`` that uses counts: the ``features``, then the
        counted features.

        ids (F), int64: 0 … D - 1 for the D ``features``; counted features have larger ids.
        """
        raise NotImplementedError

    def picture(self, value: Any) -> str | None:
        """Return a small picture of a raw value for reports, as a data URI; None if there is none."""
        return None

    def player(self, value: Any) -> str | None:
        """Return the beginning of a raw value for reports to play, as a data URI; None if it is no sound."""
        return None

    def picture_read(self, encoded: np.ndarray) -> str | None:
        """Return a small picture of an encoded value, as the model reads it, as a data URI; None if there is none."""
        return None

    def frames_read(self, encoded: np.ndarray, count: int) -> list[str]:
        """Return small pictures (data URIs) of ``count`` parts of an encoded value in order of time, taken from the
        middle of each part.

        Empty if there are none. By default, only the whole value has a picture, as a single part.
        """
        whole = self.picture_read(encoded) if count == 1 else None
        return [] if whole is None else [whole]

    def notes(self) -> list[str]:
        """Return sentences for the user on the values encoded so far, such as how many were repaired."""
        return []

    def note(self, value: Any) -> str:
        """Return a sentence on what of a raw value is not read; empty if all is read."""
        return ""

    def shown(self, value: Any) -> str:
        """Return a short text for a raw value in tables."""
        return str(value)


def build_processor(spec: ProcessorSpec) -> Processor:
    """Build the implementation of a processor's spec."""
    return implementation(spec, "qkv.data.processors")(spec)


def recognised(source: str, table: Callable[[], Table | None], columns: Collection[str] = ()) -> ProcessorSpec | None:
    """Return a processor spec with default settings for the kind of values in the file or folder ``source``; None for
    text. See ``every_recognised``.
    """
    return next(every_recognised(source, table, columns), None)


def every_recognised(
    source: str, table: Callable[[], Table | None], columns: Collection[str] = ()
) -> Iterator[ProcessorSpec]:
    """Yield processor specs with default settings for the kinds of values in the file or folder ``source``.

    ``table``: see ``Processor.recognises``; ``columns``: names of the roles whose column the user has set.
    """
    processors: dict[Any, type[Processor]] = implementations(ProcessorSpec, "qkv.data.processors")
    parts = {part: processor for part, processor in processors.items() if processor.automatic}
    named = {
        part: processor for part, processor in parts.items() if part.role is not None and part.role.name in columns
    }
    fitting = [part for part, processor in named.items() if processor.recognises(source, table)] or list(named)
    yield from (part() for part in fitting)
    if not named:
        yield from (part() for part, processor in parts.items() if processor.recognises(source, table))
