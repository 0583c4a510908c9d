"""Request parameters without effect: qkv ignores them on purpose or does not know them.

Clients that were written for other servers send many such parameters and need an answer. qkv accepts the parameters and
names them in the header ``x-qkv-ignored`` of the response and once in the log; a strict server refuses them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import ConfigDict

from qkv.serving.errors import ApiError
from qkv.spec.base import Spec
from qkv.system.errors import nearest

HEADER = "x-qkv-ignored"
_MARK = "without effect"
NoEffect = Annotated[Any, _MARK]
"""Type of a known parameter that has no effect on an answer, whatever its value."""
_NAMED, _LONGEST, _REMEMBERED = 20, 64, 1000
"""Maximum number of parameters named in a header, of characters of a name, and of distinct names that are logged."""
_LOG = logging.getLogger("qkv.serving")
_logged = set[str]()


class Lenient(Spec):
    """Spec of data from clients; unknown keys are allowed."""

    model_config = ConfigDict(extra="allow")


def without_effect(body: Spec) -> list[str]:
    """Return the names of parameters in ``body`` that have no effect, each once; keys of nested objects are named like
    ``messages.key``.
    """
    return list(dict.fromkeys(_names(body)))


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from _names(each)
    elif isinstance(value, Spec):
        for name, field in type(value).model_fields.items():
            content = getattr(value, name)
            if _MARK in field.metadata and content is not None:
                yield name
            yield from (f"{name}.{inner}" for inner in _names(content))
        yield from value.model_extra or ()


def tell(names: Sequence[str], body: Spec, strict: bool) -> None:
    """Log each parameter without effect once per process. Raises ``ApiError`` for the first if ``strict``."""
    if names and strict:
        fields = {name: field for name, field in type(body).model_fields.items() if _MARK not in field.metadata}
        without = names[0].partition(".")[0] in type(body).model_fields
        why = "it has no effect here" if without else f"it is not known here; {nearest(names[0], fields)}"
        raise ApiError(f"{names[0]}: {why} (this server is strict)", param=names[0], code="invalid_value")
    for name in names:
        if name not in _logged and len(_logged) < _REMEMBERED:
            _logged.add(name)
            _LOG.warning("the parameter %s has no effect; it is accepted, and logged once", _plain(name))


def header(names: Sequence[str]) -> str:
    """Return the value of the header that names the parameters."""
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*map(_plain, names[:_NAMED]), *more])


def _plain(name: str) -> str:
    """Escape and truncate a name to printable ASCII, as headers require."""
    return quote(name[:_LONGEST], safe="._-$[]()/:@")
