"""Parameters of requests that have no effect here, because qkv ignores them on purpose or does not know them.

Clients that were written for other servers send many of them and need an answer. qkv accepts them, and names them in
the header ``x-qkv-ignored`` of the answer and once in the log; a strict server refuses them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import ConfigDict

from qkv.serving.errors import ApiError
from qkv.spec.base import Spec
from qkv.spec.errors import nearest

HEADER = "x-qkv-ignored"
_MARK = "without effect"
NoEffect = Annotated[Any, _MARK]
"""Type of a parameter that is known to have no effect on an answer, of any value."""
_NAMED, _LONGEST, _REMEMBERED = 20, 64, 1000
"""Parameters that a header names, characters of a name in it, and names of which it is known that they are logged."""
_LOG = logging.getLogger("qkv.serving")
_logged = set[str]()


class Lenient(Spec):
    """Spec of data that clients send, which may have keys that are not known."""

    model_config = ConfigDict(extra="allow")


def without_effect(body: Spec) -> list[str]:
    """Names of given parameters that have no effect, each once; those of inner objects as ``messages.key``."""
    return list(dict.fromkeys(_names(body)))


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from _names(each)
    elif isinstance(value, Spec):
        for name, field in type(value).model_fields.items():
            given = getattr(value, name)
            if _MARK in field.metadata and given is not None:
                yield name
            yield from (f"{name}.{inner}" for inner in _names(given))
        yield from value.model_extra or ()


def tell(names: Sequence[str], body: Spec, strict: bool) -> None:
    """Log parameters without effect, each once. Raises ``ApiError`` for the first one on a strict server."""
    if names and strict:
        known = {name: field for name, field in type(body).model_fields.items() if _MARK not in field.metadata}
        without = names[0] in type(body).model_fields
        why = "it has no effect here" if without else f"it is not known here; {nearest(names[0], known)}"
        raise ApiError(f"{names[0]}: {why} (this server is strict)", param=names[0], code="invalid_value")
    for name in names:
        if name not in _logged and len(_logged) < _REMEMBERED:
            _logged.add(name)
            _LOG.warning("the parameter %s has no effect; it is accepted, and logged once", _plain(name))


def header(names: Sequence[str]) -> str:
    """Value of the header that names parameters."""
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*map(_plain, names[:_NAMED]), *more])


def _plain(name: str) -> str:
    """A name in printable ASCII, as headers need it."""
    return quote(name[:_LONGEST], safe="._-$[]()/:@")
