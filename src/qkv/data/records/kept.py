"""Tables that one command needs several times: to infer the task, to choose a recipe, and to train."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from qkv.data.records.table import Table

_kept: ContextVar[dict[Hashable, Table] | None] = ContextVar("tables", default=None)


@contextmanager
def keeping_tables() -> Iterator[None]:
    """Context manager that caches tables: each table opened inside is read once, and kept until ``release_tables`` or
    the end of the outermost context.
    """
    token = None if _kept.get() is not None else _kept.set({})
    try:
        yield
    finally:
        if token is not None:
            _kept.reset(token)


def kept(key: Hashable, read: Callable[[], Table]) -> Table:
    """Table cached under ``key``, or else read now. ``key``: everything that the result of ``read`` depends on."""
    tables = _kept.get()
    if tables is None:
        return read()
    if key not in tables:
        tables[key] = read()
    return tables[key]


def release_tables() -> None:
    """Empty the cache of tables, to free memory once the rows are converted to examples."""
    tables = _kept.get()
    if tables is not None:
        tables.clear()
