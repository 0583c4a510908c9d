"""Valid specs of every registered part, drawn from the types and bounds of their fields."""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from qkv.spec.base import Part, Spec
from qkv.spec.branches import Attention
from qkv.spec.data import Data
from qkv.spec.errors import SpecError
from qkv.spec.files.formats import FORMAT
from qkv.spec.files.plain import is_slot
from qkv.spec.masks import Causal, Mask
from qkv.spec.model import Block, Model
from qkv.spec.recipe import Recipe
from qkv.spec.recipes.parallel import Parallel

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "no",
        "on",
        "1e-3",
        "0o17",
        "1_000",
        "~",
        "- a",
        "a: b",
        "#",
        "*x",
        "two\nlines",
        "two\n\n lines \n",
        "tab\there",
        "'",
        '"',
        "é",
        "😀",
    ]
)
PLAIN = st.none() | st.booleans() | st.integers(-9, 9) | TEXT


def slots() -> list[type[Part]]:
    """Every slot that this package declares; tests declare some of their own."""
    return [slot for slot in Part.__subclasses__() if slot.__module__.startswith("qkv.")]


def parts() -> list[type[Part]]:
    return [part for slot in slots() for part in slot.kinds().values() if part.__module__.startswith("qkv.")]


def valid(spec: type[Spec], depth: int = 2) -> SearchStrategy[Any]:
    """Specs of one class, or parts of one slot. ``depth`` bounds parts inside of parts."""
    if is_slot(spec):
        kinds = [part for part in parts() if issubclass(part, spec)]
        return st.one_of([valid(part, depth) for part in kinds if depth > 0 or not _holds(part, spec)])
    return _drawn(spec, depth)


def models() -> SearchStrategy[Model]:
    return valid(Model)


def recipes() -> SearchStrategy[Recipe]:
    return valid(Recipe)


@st.composite
def _drawn(draw: st.DrawFn, spec: type[Spec], depth: int) -> Spec:
    """Not a filter: hypothesis writes one out in full, every part inside, where it gives up."""
    for _ in range(3):
        found = _parsed(spec, draw(_fields(spec, depth)))
        if found is not None:
            return found
    return reject()


def _parsed(spec: type[Spec], fields: dict[str, Any]) -> Spec | None:
    try:
        return spec.parse(fields)
    except SpecError:
        return None


@cache
def _holds(part: type[Spec], slot: type[Spec]) -> bool:
    return any(slot in _leaves(field.annotation) for field in part.model_fields.values())


def _leaves(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    return [leaf for arg in inner for leaf in _leaves(arg)] if inner else [annotation]


@cache
def _fields(spec: type[Spec], depth: int) -> SearchStrategy[dict[str, Any]]:
    needed, chosen = {}, {}
    for name, field in spec.model_fields.items():
        values = _values(field.annotation, tuple(field.metadata), depth - 1)
        (needed if field.is_required() else chosen)[name] = values
    if spec in (Model, Block):  # powers of two fit each other's sizes; a width has to be one of the large ones
        chosen |= {"width": st.just(64)} if spec is Model else {}
        needed |= {name: chosen.pop(name) for name in ("blocks", "branches", "width") if name in chosen}
    if spec is Attention:  # a task that decodes asks for causal masks
        masks = valid(Mask, depth - 1)
        chosen.pop("mask")
        needed["mask"] = (
            st.just(Causal()) | masks.map(lambda mask: Causal() & mask) | masks.map(lambda mask: mask & Causal())
        )
    if spec is Recipe:  # most tasks read something
        needed["data"] = chosen.pop("data")
        chosen["format"] = st.just(FORMAT)
    if spec is Parallel:  # positions are divided among processes with all weights
        chosen["context"] = st.just(1)
    if spec is Data:
        needed["source"] = TEXT.filter(bool)
    return st.fixed_dictionaries(needed, optional=chosen)


def _values(annotation: Any, bounds: tuple[Any, ...], depth: int) -> SearchStrategy[Any]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _values(inner[0], (*bounds, *inner[1:]), depth)
    if origin in (Union, UnionType):
        return st.one_of([_values(arg, bounds, depth) for arg in inner])
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is tuple:
        least = next((b.min_length for b in bounds if isinstance(b, annotated_types.MinLen)), 0)
        return st.lists(_values(inner[0], (), depth), min_size=least, max_size=max(least, 2))
    if origin is dict and any(isinstance(leaf, type) and issubclass(leaf, Spec) for leaf in _leaves(inner[1])):
        several = st.dictionaries(st.sampled_from(["image", "words"]), _values(inner[1], (), depth), max_size=2)
        return st.just({}) | st.just({}) | several  # others fit few recipes
    if origin is dict:
        return st.dictionaries(TEXT, PLAIN | st.lists(PLAIN, max_size=2), max_size=2)
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return valid(annotation, depth)
    return _scalar(annotation, bounds)


def _scalar(annotation: Any, bounds: tuple[Any, ...]) -> SearchStrategy[Any]:
    if annotation is type(None):
        return st.none()
    if annotation is bool:
        return st.booleans()
    if annotation is str:
        least = next((b.min_length for b in bounds if isinstance(b, annotated_types.MinLen)), 0)
        return TEXT.filter(lambda text: len(text) >= least)
    if annotation is int:
        return st.sampled_from([v for v in (0, 1, 2, 4, 8, 16, 64, 512, 100_000) if _inside(v, bounds)])
    assert annotation is float, annotation
    return st.sampled_from([v for v in (0.0, 1e-12, 3e-5, 0.1, 1 / 3, 0.5, 1.0, 2.5, 1e4, 1e22) if _inside(v, bounds)])


def _inside(value: float, bounds: tuple[Any, ...]) -> bool:
    tests = {
        "gt": lambda b: value > b,
        "ge": lambda b: value >= b,
        "lt": lambda b: value < b,
        "le": lambda b: value <= b,
    }
    return all(test(getattr(bound, name)) for bound in bounds for name, test in tests.items() if hasattr(bound, name))
