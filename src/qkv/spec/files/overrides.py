"""Dotted overrides of a spec, applied to plain data before it is validated.

    model.width=64                      a key
    model.blocks.0.branches.1=gru       an element of a list by its index; -1 is the last, * is all
    model.blocks.norm=rms_norm          a key of a list's elements: all elements that have it
    model.blocks.mixer.num_heads=8      ``mixer`` selects the branches that mix positions, ``feed_forward`` the others
    model.blocks.gru.hidden=64          a kind selects all parts of that kind in a list
    model.norm=rms_norm(eps=1e-5)       short forms, numbers, true, null, [lists] and {mappings} as in YAML

Short forms and defaults are expanded when a key inside them is set. Setting ``kind`` replaces the part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple, TypeVar, cast

from qkv.spec.base import Part, Spec, read_short_form
from qkv.spec.branches import Branch
from qkv.spec.errors import Problem, SpecError
from qkv.spec.files.formats import upgraded_path
from qkv.spec.files.plain import Shape, is_slot, plain, shape_of
from qkv.spec.files.reader import Lines, SpecPath, read_yaml, scalar
from qkv.system.errors import dotted, nearest

S = TypeVar("S", bound=Spec)
MEASURED_ON = (("data", "columns"),)
"""Paths of a recipe, besides ``sample``, that can be changed when evaluating a trained model."""


class Assignment(NamedTuple):
    """Override of one value: path, new value, original text, and the characters of the value as typed."""

    path: tuple[str, ...]
    value: Any
    text: str
    raw: str | None = None

    @classmethod
    def of(cls, path: str, value: Any) -> Assignment:
        """Build the assignment of a Python value to a dotted ``path``."""
        return cls(upgraded_path(tuple(path.split("."))), value, f"{path}={value}")

    @property
    def text_value(self) -> Any:
        """Value for a field of type text: the characters as typed, so that 2024 can be a name."""
        return self.value if self.raw is None or isinstance(self.value, str) else self.raw

    def under(self, name: str) -> Assignment:
        """Return the assignment with ``name`` prepended to its path."""
        return self._replace(path=(name, *self.path))

    def below(self, name: str) -> Assignment:
        """Return the assignment with a leading ``name`` removed from its path, if there is one."""
        return self._replace(path=self.path[1:]) if self.path[0] == name and len(self.path) > 1 else self


def assignments(overrides: Iterable[str | Assignment]) -> Iterator[Assignment]:
    """Parse overrides written as ``path=value``; assignments pass unchanged. Raises ``SpecError``."""
    for text in [overrides] if isinstance(overrides, str) else overrides:
        if isinstance(text, Assignment):
            yield text
            continue
        path, equals, raw = text.partition("=")
        names = tuple(name.strip() for name in path.split("."))
        if not equals:
            raise _error(text, "there is no '=' in it; write path=value, such as training.steps=500")
        if not all(names):
            raise _error(text, "a name of its path is empty; write path=value, such as training.steps=500")
        yield Assignment(upgraded_path(names), _value(text, raw.strip()), text, raw.strip())


def override(spec: S, overrides: Iterable[str | Assignment]) -> S:
    """Return a copy of ``spec`` changed by dotted overrides such as ``model.width=64``. Raises ``SpecError``."""
    return parsed(type(spec), plain(spec, in_slot=False), assignments(overrides))


def measured(recipe: S, changes: Iterable[str | Assignment]) -> S:
    """Apply overrides allowed when evaluating a trained model: ``sample.…`` and data columns. Raises ``SpecError``.

    Other keys describe the model and its training, which evaluation cannot change.
    """
    chosen = list(assignments(changes))
    for change in chosen:
        if change.path == ("data", "source"):
            raise _error(
                change.text,
                "splits and baselines belong to the training data; to evaluate on another file give --data FILE",
            )
        if change.path[0] != "sample" and change.path[:2] not in MEASURED_ON:
            path = ".".join(change.path)
            paths = " and ".join(".".join(names) for names in MEASURED_ON)
            raise _error(
                change.text, f"{path} describes the training; an evaluation can change sample.… and {paths} only"
            )
    return override(recipe, chosen) if chosen else recipe


def quick_form(values: Mapping[str, Any]) -> list[Assignment]:
    """Convert a recipe's ``quick`` (dotted path to value) to assignments."""
    return [Assignment.of(path, value) for path, value in values.items()]


def parsed(
    top: type[S], data: dict[str, Any], chosen: Iterable[Assignment], source: str = "", lines: Lines | None = None
) -> S:
    """Parse plain ``data`` with the overrides ``chosen``. Raises ``SpecError`` that names the override at fault.

    ``source``: file name for error messages; ``lines``: line number of each path in that file.
    """
    origins: dict[SpecPath, str] = {}
    try:
        data, origins = apply(data, chosen, top)
        return top.parse(data, source, lines)
    except SpecError as error:
        if error.source.startswith("override"):
            raise
        cause = _to_blame(error.problems[0].path, origins)
        if cause is None:
            raise SpecError(error.problems, source, lines) from None
        raise SpecError(error.problems, f"override {cause!r}") from None


def _to_blame(path: SpecPath, origins: dict[SpecPath, str]) -> str | None:
    """Return the text of the override that set ``path`` or a parent of it, or else a key inside it; None if none."""
    around = [text for place, text in origins.items() if path[: len(place)] == place]
    inside = [text for place, text in origins.items() if path and place[: len(path)] == path]
    return next(iter([*around, *inside]), None)


def apply(
    data: Mapping[str, Any], chosen: Iterable[Assignment], top: type[Spec]
) -> tuple[dict[str, Any], dict[SpecPath, str]]:
    """Apply assignments to a copy of the plain ``data`` of a spec ``top``.

    Returns (the changed data, the text of the override that set each path).
    """
    root = {"": deepcopy(dict(data))}
    origins: dict[SpecPath, str] = {}
    for assignment in chosen:
        search = _Search(assignment, top)
        for target in list(search.find(_Place(root, "", Shape(top, False, False), ()), assignment.path)):
            target.holder[target.key] = assignment.text_value if target.shape.text else deepcopy(assignment.value)
            origins = {path: text for path, text in origins.items() if path[: len(target.trail)] != target.trail}
            origins[target.trail] = assignment.text
        search.refuse_if_nothing_matched()
    return root[""], origins


def _error(text: str, sentence: str) -> SpecError:
    return SpecError([Problem((), sentence)], f"override {text!r}")


def _value(text: str, raw: str) -> Any:
    if raw[:1] not in tuple("[{\"'"):
        return scalar(raw)
    try:
        return read_yaml(raw)[0]
    except SpecError as error:
        raise _error(text, error.problems[0].sentence) from None


class _Place(NamedTuple):
    """Location of a value: ``holder[key]``, its type (``shape``) and its path from the top (``trail``)."""

    holder: Any
    key: Any
    shape: Shape
    trail: SpecPath

    @property
    def value(self) -> Any:
        return self.holder[self.key]

    @property
    def length(self) -> int | None:
        """Length of the value; None if it is not a list."""
        value: Any = self.value
        return len(cast("list[Any]", value)) if isinstance(value, list) else None

    def element(self, index: int) -> _Place:
        return _Place(self.value, index, Shape(self.shape.spec, False, False), (*self.trail, index))


class _Miss(NamedTuple):
    """Name in an override's path that does not exist, for the error message.

    left: number of remaining names of the path; trail: location reached; known: names that exist there; sentence: error
    message that replaces the default message.
    """

    left: int
    trail: SpecPath
    name: str
    known: frozenset[str]
    sentence: str = ""


class _Search:
    """Search for all places in plain data that the path of an assignment matches, and the reasons for misses."""

    def __init__(self, assignment: Assignment, top: type[Spec]):
        self.assignment, self.top = assignment, top
        self.found = False
        self.misses: list[_Miss] = []

    def find(self, place: _Place, names: tuple[str, ...]) -> Iterator[_Place]:
        if not names:
            self.found = True
            yield place
        elif place.shape.many:
            yield from self._in_list(place, names)
        elif place.shape.spec is not None:
            yield from self._in_spec(place, place.shape.spec, names)
        else:
            yield from self._in_plain(place, names)

    def _in_list(self, place: _Place, names: tuple[str, ...]) -> Iterator[_Place]:
        name, count = names[0], place.length
        if count is None:
            return self._miss(place, names, sentence=f"{dotted(place.trail)!r} is not a list")
        if name == "*":
            for index in range(count):
                yield from self.find(place.element(index), names[1:])
        elif name.lstrip("-").isdecimal():
            index = int(name)
            if not -count <= index < count:
                return self._miss(
                    place,
                    names,
                    sentence=f"{dotted(place.trail)!r} has {count} elements, 0 to {count - 1}, and no {index}",
                )
            yield from self.find(place.element(index % count), names[1:])
        else:
            for index in range(count):
                yield from self.find(place.element(index), names)
        return None

    def _in_spec(self, place: _Place, spec: type[Spec], names: tuple[str, ...]) -> Iterator[_Place]:
        name, rest = names[0], names[1:]
        if place.value is None:
            example = next(iter(_kinds(spec)), "{}")
            return self._miss(
                place,
                names,
                sentence=f"{dotted(place.trail)!r} is not set; set it first, such as {dotted(place.trail)}={example}",
            )
        actual = self._open(place, spec)
        if name in actual.model_fields:
            yield from self.find(self._field(place, actual, name, fill=bool(rest)), rest)
        elif name == "kind" and is_slot(spec) and not rest:
            yield from self.find(place, ())
        else:
            chosen = list(self._named(place, spec, name))
            for part in chosen:
                yield from self.find(part, rest)
            if not chosen:
                self._miss(place, names, self._names_at(place, spec, actual), _other_kinds(place, spec, actual, name))
        return None

    def _in_plain(self, place: _Place, names: tuple[str, ...]) -> Iterator[_Place]:
        name, rest = names[0], names[1:]
        value: Any = place.value
        if not isinstance(value, dict):
            return self._miss(place, names, sentence=f"{dotted(place.trail)!r} is a single value with nothing below it")
        fields = cast("dict[str, Any]", value)
        if rest and name not in fields:
            return self._miss(place, names, allowed=frozenset(fields))
        yield from self.find(_Place(fields, name, Shape(None, False, False), (*place.trail, name)), rest)
        return None

    def _open(self, place: _Place, spec: type[Spec]) -> type[Spec]:
        """Expand the value at ``place`` to a mapping and return its spec class."""
        fields = place.holder[place.key] = _opened(place.value, spec, place.trail)
        return _kinds(spec).get(str(fields.get("kind")), spec)

    def _field(self, place: _Place, actual: type[Spec], name: str, fill: bool) -> _Place:
        """Return the place of the field ``name`` in the mapping at ``place``, whose spec class is ``actual``.

        With ``fill``, a missing field is first added to the mapping with its default value, or as {} if it has none.
        """
        field, fields = actual.model_fields[name], place.value
        shape = shape_of(field.annotation)
        if fill and name not in fields:
            default = field.get_default(call_default_factory=True)
            fields[name] = {} if field.is_required() else plain(default, is_slot(shape.spec))
        return _Place(fields, name, shape, (*place.trail, name))

    def _named(self, place: _Place, spec: type[Spec], name: str) -> Iterator[_Place]:
        """Yield the part at ``place`` if ``name`` (a kind, "mixer", …) selects it, else selected parts in its lists."""
        actual = self._open(place, spec)
        if is_slot(spec) and _selects(actual, name):
            yield place
            return
        for field in _lists_of_parts(actual):
            inner = self._field(place, actual, field, fill=True)
            for index in range(inner.length or 0):
                part = inner.element(index)
                if part.shape.spec is not None:
                    yield from self._named(part, part.shape.spec, name)

    def _names_at(self, place: _Place, spec: type[Spec], actual: type[Spec]) -> frozenset[str]:
        names = {*actual.model_fields, *(["kind"] if is_slot(spec) else [])}
        for field in _lists_of_parts(actual):
            inner = self._field(place, actual, field, fill=True)
            slot = inner.shape.spec
            names |= {"mixer", "feed_forward"} if slot is Branch else set()
            parts = [inner.element(index).value for index in range(inner.length or 0)]
            names |= {str(_opened(part, slot, inner.trail).get("kind")) for part in parts if slot is not None}
        return frozenset(names)

    def _miss(
        self, place: _Place, names: tuple[str, ...], allowed: frozenset[str] = frozenset(), sentence: str = ""
    ) -> None:
        self.misses.append(_Miss(len(names), place.trail, names[0], allowed, sentence))

    def refuse_if_nothing_matched(self) -> None:
        """Raise ``SpecError`` if no place matched, for the miss with the longest matching beginning of the path."""
        if self.found:
            return
        left = min((miss.left for miss in self.misses), default=0)
        furthest = [miss for miss in self.misses if miss.left == left]
        if not furthest:
            raise _error(self.assignment.text, "its path ends in a list without elements")
        first = furthest[0]
        where = repr(dotted(first.trail)) if first.trail else f"a {self.top.__name__.lower()}"
        names = frozenset[str]().union(*(miss.known for miss in furthest))
        hint = self._one_level_down(first) or nearest(first.name, names)
        raise _error(self.assignment.text, first.sentence or f"there is no {first.name!r} in {where}; {hint}")

    def _one_level_down(self, miss: _Miss) -> str:
        if miss.trail:
            return ""
        inner = {name: shape_of(field.annotation) for name, field in self.top.model_fields.items()}
        paths = [
            f"{name}.{miss.name}"
            for name, shape in inner.items()
            if shape.spec and miss.name in shape.spec.model_fields
        ]
        return f"did you mean {paths[0]!r}?" if paths else ""


def _opened(value: Any, spec: type[Spec] | None, trail: SpecPath) -> dict[str, Any]:
    """Expand ``value`` to a mapping: from a short form, or from a single value for a spec (such as a data source)."""
    if isinstance(value, dict) or spec is None:
        return cast("dict[str, Any]", value)
    try:
        if is_slot(spec) and isinstance(value, str):
            value = read_short_form(cast("type[Part]", spec), value)
        opened: Any = value if isinstance(value, dict) else plain(spec.parse(value), is_slot(spec))  # pyright: ignore[reportUnknownVariableType]
    except SpecError as error:
        raise SpecError([problem.under(*trail) for problem in error.problems]) from None
    except ValueError as error:
        raise SpecError([Problem(trail, str(error))]) from None
    return {"kind": opened} if isinstance(opened, str) else cast("dict[str, Any]", opened)


def _other_kinds(place: _Place, spec: type[Spec], actual: type[Spec], name: str) -> str:
    """Return a sentence with the other kinds of the slot that have the key ``name``; empty if there are none."""
    having = sorted(kind for kind, part in _kinds(spec).items() if name in part.model_fields)
    if not having or actual is spec:
        return ""
    return (
        f"{dotted(place.trail)!r} is {cast('type[Part]', actual).kind!r}, which has no {name!r}; "
        f"kinds that have it: {', '.join(having)}"
    )


def _kinds(spec: type[Spec]) -> Mapping[str, type[Spec]]:
    return cast("type[Part]", spec).kinds() if is_slot(spec) else {}


def _lists_of_parts(spec: type[Spec]) -> list[str]:
    shapes = {name: shape_of(field.annotation) for name, field in spec.model_fields.items()}
    return [name for name, shape in shapes.items() if shape.many and is_slot(shape.spec)]


def _selects(part: type[Spec], name: str) -> bool:
    if name in ("mixer", "feed_forward") and issubclass(part, Branch):
        # The kind's defaults decide: a MONet layer counts as a mixer, although its settings can make it position-wise.
        return part.model_construct().mixes == (name == "mixer")
    return issubclass(part, Part) and part.kind == name
