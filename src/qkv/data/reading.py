"""Cache of the data that one command reads, so that it reads each file once although several steps need the content.

A command needs a file to recognise its format, to choose a recipe, and to train each candidate model. Inside
``one_reading`` these steps share a cache: contents of files and tables until ``release``; the latest examples and the
latest encoded values until the end. Keys include the size and modification time of a file, so that a changed file is
read again.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeVar

from qkv.spec.data import Data

T = TypeVar("T")
P = ParamSpec("P")
HELD = 1 << 27
"""Maximum size in bytes of all file contents held together; files that do not fit are read again when needed."""
_BLOCK = 1 << 20
_SEPARATOR = "|"
_ENCODES = ("tokenizer", "target_tokenizer", "processor", "batching")
"""Settings of the data that affect only how examples are encoded, not which rows are read."""


class SourceReading:
    """Cache of one command: files that it has read, and results computed from them.

    ``contents``: bytes of files. ``kept``: results until ``release``. ``facts``: small results, until the end of the
    command. ``latest``: last key and result for each name.
    """

    def __init__(self) -> None:
        self.contents: dict[Hashable, bytes] = {}
        self.kept: dict[Hashable, Any] = {}
        self.facts: dict[Hashable, Any] = {}
        self.latest: dict[Hashable, tuple[Hashable, Any]] = {}

    def content(self, path: Path, open_bytes: Callable[[Path], BinaryIO]) -> bytes | None:
        """Return the content of a file as ``open_bytes`` reads it; hold it until ``release``.

        Returns None if all contents together would exceed ``HELD``. Raises ``OSError``.
        """
        key = identity_of(path)
        if key not in self.contents:
            room = HELD - sum(map(len, self.contents.values()))
            if self.facts.get(("unpacks to more", key)) or path.stat().st_size > room:
                return None
            with open_bytes(path) as file:
                content = _up_to(file, room)
            if content is None:
                self.facts["unpacks to more", key] = True
                return None
            self.contents[key] = content
        return self.contents[key]


_reading: ContextVar[SourceReading | None] = ContextVar("reading", default=None)


@contextmanager
def one_reading() -> Iterator[None]:
    """Context manager in which each data file is read once. A nested context shares the cache of the outer one."""
    token = None if _reading.get() is not None else _reading.set(SourceReading())
    try:
        yield
    finally:
        if token is not None:
            _reading.reset(token)


def current() -> SourceReading | None:
    """Return the ``SourceReading`` of the ``one_reading`` block that this thread runs in, or None.

    Threads started by other libraries, such as those that train tokenizers, have none.
    """
    return _reading.get()


def identity_of(source: str | Path) -> Hashable:
    """Return a key of the content of a file, a folder, or files joined by |: names, sizes and modification times.

    Returns ``source`` itself if it is none of these, for example the name of a data set or a data URI.
    """
    if str(source).startswith("data:"):  # never read as paths: clients of a server write it
        return str(source)
    path = Path(source).expanduser()
    try:
        if path.is_dir():
            return str(source), tuple(identity_of(each) for each in sorted(path.rglob("*")) if each.is_file())
        stat = path.stat()
        return str(source), stat.st_size, stat.st_mtime_ns
    except (OSError, ValueError):
        names = str(source).split(_SEPARATOR)
        return tuple(identity_of(name.strip()) for name in names) if len(names) > 1 else str(source)


def identity_of_data(data: Data) -> Hashable:
    """Return a key of the examples of ``data``: the identities of its files, and all settings that affect reading rows
    from them.
    """
    reads = {name: value for name, value in data.to_dict().items() if name not in _ENCODES}
    files = (data.source, data.validation, data.test)
    return json.dumps(reads, sort_keys=True), tuple(identity_of(file) for file in files if file is not None)


def cached(key: Hashable, read: Callable[[], T]) -> T:
    """Return the result of ``read`` for ``key``, cached until ``release``. ``key``: everything that the result depends
    on.
    """
    reading = _reading.get()
    return read() if reading is None else _get_or_make(reading.kept, key, read)


def fact(key: Hashable, find: Callable[[], T]) -> T:
    """Return a small result of ``find`` for ``key``, such as a digest, cached until the end of the reading."""
    reading = _reading.get()
    return find() if reading is None else _get_or_make(reading.facts, key, find)


def latest(name: Hashable, key: Hashable, make: Callable[[], T]) -> T:
    """Return the result of ``make`` for ``key``, from memory if the last call for ``name`` had the same key.

    Memory holds one result for each ``name``.
    """
    reading = _reading.get()
    if reading is None:
        return make()
    if name not in reading.latest or reading.latest[name][0] != key:
        reading.latest.pop(name, None)  # frees the old result before the new one is computed
        reading.latest[name] = key, make()
    return reading.latest[name][1]


def read_once(key: Callable[P, Hashable]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function that reads data so that its latest result is reused inside ``one_reading``.

    ``key``: function of the same arguments that returns everything that the result depends on.
    """

    def decorated(read: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(read)
        def once(*args: P.args, **kwargs: P.kwargs) -> T:
            if _reading.get() is None:
                return read(*args, **kwargs)
            return latest(read.__qualname__, key(*args, **kwargs), lambda: read(*args, **kwargs))

        return once

    return decorated


def _up_to(file: BinaryIO, most: int) -> bytes | None:
    """Read the rest of a file; return None if it is more than ``most`` bytes, for example because a small file unpacks
    to many.
    """
    blocks, size = list[bytes](), 0
    while block := file.read(_BLOCK):
        blocks.append(block)
        size += len(block)
        if size > most:
            return None
    return b"".join(blocks)


def release() -> None:
    """Free contents of files and tables, once their rows are converted to examples."""
    reading = _reading.get()
    if reading is not None:
        reading.contents.clear()
        reading.kept.clear()


def _get_or_make(shelf: dict[Hashable, Any], key: Hashable, make: Callable[[], T]) -> T:
    if key not in shelf:
        shelf[key] = make()
    return shelf[key]
