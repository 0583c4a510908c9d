"""Inverse of ``Spec.parse``: specs as concise plain data, and the types of fields."""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, cast, get_args, get_origin

from qkv.spec.base import Part, Spec


class Shape(NamedTuple):
    """Type of a field. spec: class of the spec, None for plain values; many: True for lists; text: True for strings."""

    spec: type[Spec] | None
    many: bool
    text: bool


def shape_of(annotation: Any) -> Shape:
    """Return the ``Shape`` of a field's annotation; ``X | None`` has the shape of ``X``, but ``text`` is False."""
    if get_origin(annotation) is Annotated:
        return shape_of(get_args(annotation)[0])
    choices = [a for a in get_args(annotation) if a is not type(None)]
    if get_origin(annotation) in (tuple, list):
        return Shape(shape_of(choices[0]).spec, True, False)
    if get_origin(annotation) in (Union, UnionType) and len(choices) == 1:
        return shape_of(choices[0])._replace(text=False)
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return Shape(annotation, False, False)
    return Shape(None, False, annotation is str)


def is_slot(spec: type[Spec] | None) -> bool:
    """Return True for a slot, the base class of interchangeable parts; False for other specs and None."""
    return spec is not None and Part in spec.__bases__


def plain(value: Any, in_slot: bool | None = None) -> Any:
    """Convert a spec to plain data with all fields; parts without fields become their kind, and masks their text.

    ``type(spec).parse``, for a part ``parse`` of its slot, restores an equal spec from the result. Lists and mappings
    are converted item by item; other values are unchanged.
    ``in_slot``: False if the part's ``kind`` is implied by the type of its field.
    """
    if isinstance(value, Part) and in_slot is not False:
        return _part(value)
    if isinstance(value, Spec):
        return _fields(value)
    if isinstance(value, (list, tuple)):
        return [plain(item, in_slot) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in cast("dict[str, Any]", value).items()}
    return value


def _fields(spec: Spec) -> dict[str, Any]:
    fields = type(spec).model_fields
    return {
        name: plain(getattr(spec, name), is_slot(shape_of(field.annotation).spec)) for name, field in fields.items()
    }


def _part(part: Part) -> Any:
    slot = next(c for c in type(part).__mro__ if is_slot(c))
    if "short_form" in vars(slot) and _reads_back(slot, str(part), part):
        return str(part)
    return {"kind": part.kind, **_fields(part)} if type(part).model_fields else part.kind


def _reads_back(slot: type[Spec], text: str, part: Part) -> bool:
    try:
        return slot.parse(text) == part
    except ValueError:
        return False
