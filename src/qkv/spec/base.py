"""Base classes of specs, the configuration data of models and runs.

``Spec``: frozen, validated, nested data. ``Part``: a spec that is selected by its ``kind``.

A slot is a family of interchangeable parts, such as all norms. It is a subclass of ``Part`` declared with
``slot=True``, and its subclasses register themselves under their kind:

    class Norm(Part, slot=True): ...
    class RMSNorm(Norm, kind="rms_norm"): eps: float = 1e-6

A field ``norm: Norm`` then accepts an instance, a mapping with ``kind``, or the short form ``"rms_norm(eps=1e-5)"``.
Parts defined by users are registered in the same way.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, NoReturn, Self, TypeVar, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic_core import PydanticCustomError, core_schema

from qkv.spec.errors import Problem, SpecError
from qkv.spec.extension.imports import import_more
from qkv.system.errors import nearest, quoted

T = TypeVar("T")


def _as_tuple(value: Any) -> Any:
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


Seq = Annotated[tuple[T, ...], BeforeValidator(_as_tuple)]
"""Tuple that also accepts a list, as read from YAML and JSON."""


class FrozenDict(dict[str, T]):
    """Dictionary in a frozen spec: it is hashed by its items and never changed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


def _freeze(values: dict[str, T]) -> FrozenDict[T]:
    return FrozenDict(values)


ByName = Annotated[dict[str, T], AfterValidator(_freeze)]
"""Dictionary by name that can be hashed, for the specs of models."""
LARGEST, LARGEST_SEED = 2**31 - 1, 2**63 - 1
"""Upper bound of integer fields without another bound, above any size of a model; upper bound of seeds."""


def bounded(schema: Any) -> Any:
    """Add bounds of ±``LARGEST`` to unbounded integers in a pydantic core ``schema``, in place; return the schema."""
    node = cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}
    for item in cast("Sequence[Any]", schema) if isinstance(schema, list | tuple) else ():
        bounded(item)
    if node.get("type") == "int":
        node.update({} if "le" in node or "lt" in node else {"le": LARGEST})
        node.update({} if "ge" in node or "gt" in node else {"ge": -LARGEST})
    for key, inner in node.items():
        if key not in ("metadata", "serialization", "default"):
            bounded(inner)
    return cast("Any", schema)


class Spec(BaseModel):
    """Base class of frozen, strictly typed data.

    An unknown key is an error whose message suggests the nearest known key. Numbers must be finite.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return bounded(handler(source))

    @classmethod
    def parse(cls, data: Any, source: str = "", lines: dict[tuple[str | int, ...], int] | None = None) -> Self:
        """Validate plain nested data. Raises ``SpecError`` with path, message and, if known, the line in ``source``.

        ``source``: file name for error messages; ``lines``: line number of each path in that file.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise SpecError(problems_of(error, cls), source, lines) from None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain nested data, from which ``type(self).parse`` restores an equal spec."""
        return self.model_dump(mode="json")

    def essential(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults as plain nested data.

        The result stays the same when later versions add fields.
        """
        fields = ((name, getattr(self, name), field) for name, field in type(self).model_fields.items())
        return {
            name: _essential(value)
            for name, value, field in fields
            if value != field.get_default(call_default_factory=True)
        }

    def changed(self, **fields: Any) -> Self:
        """Return a validated copy with some fields replaced."""
        current = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).parse({**current, **fields})

    def problems(self) -> list[Problem]:
        """Return errors in combinations of individually valid fields; empty if none. Subclasses override it."""
        return []

    def model_post_init(self, _context: Any) -> None:
        raise_problems(self.problems())


class Part(Spec):
    """Base class of specs that are interchangeable in a slot, such as all norms, and are selected by their ``kind``."""

    kind: ClassVar[str] = ""
    _kinds: ClassVar[dict[str, type[Part]]] = {}
    _is_slot: ClassVar[bool] = False

    @classmethod
    def __pydantic_init_subclass__(cls, slot: bool = False, kind: str = "", **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls._is_slot = slot
        if slot:
            cls._kinds = {}
        elif kind:
            cls.kind = kind
            if kind in cls._kinds and cls._kinds[kind].__qualname__ != cls.__qualname__:
                raise TypeError(f"the kind {kind!r} is taken by {cls._kinds[kind].__qualname__}")
            cls._kinds[kind] = cls

    def __init_subclass__(cls, slot: bool = False, kind: str = "", **kwargs: Any) -> None:
        # pydantic builds the class's schema inside this call, before the hook above runs.
        cls._is_slot = slot
        super().__init_subclass__(**kwargs)

    @classmethod
    def kinds(cls) -> dict[str, type[Self]]:
        """Return the registered subclasses of this slot, such as every norm, by their ``kind``."""
        return cls._kinds  # type: ignore[return-value]

    @classmethod
    def of_kind(cls, kind: object) -> type[Self] | None:
        """Return the part class of this slot with that kind, or None; for an unknown kind, ``import_more`` first."""
        if not isinstance(kind, str):
            return None
        if kind not in cls._kinds:
            import_more()
        return cls.kinds().get(kind)

    @classmethod
    def short_form(cls, text: str) -> Any:
        """Parse a part's text form, such as ``"window(512, sinks=4)"``, to plain data; masks allow ``&``, ``|``."""
        return call_form(cls, text)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        schema = bounded(handler(source))
        if cls.__dict__.get("_is_slot"):
            return core_schema.no_info_plain_validator_function(
                lambda value: _fill_slot(cls, value),
                serialization=core_schema.plain_serializer_function_ser_schema(_dump_part),
                metadata={"slot": cls},
            )
        return schema

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        if not cls.__dict__.get("_is_slot"):
            return handler(schema)
        # Slots can be recursive (a mask of masks), so the schema is a reference that qkv.spec.files.schema resolves.
        return {"x-slot": cls.__name__}

    def to_dict(self) -> dict[str, Any]:
        return _dump_part(self)

    def essential(self) -> dict[str, Any]:
        return {"kind": self.kind, **super().essential()}


def _essential(value: Any) -> Any:
    if isinstance(value, Spec):
        return value.essential()
    if isinstance(value, dict):
        return {name: _essential(item) for name, item in cast("dict[str, Any]", value).items()}
    return [_essential(item) for item in cast("Sequence[Any]", value)] if isinstance(value, (tuple, list)) else value


def _dump_part(part: Part) -> dict[str, Any]:
    return {"kind": part.kind, **part.model_dump(mode="json")}


def _fill_slot(slot: type[Part], value: Any) -> Part:
    """Convert an instance, a mapping with ``kind`` or a short form to a part of ``slot``."""
    if isinstance(value, slot):
        return value
    noun, kinds = with_article(words(slot.__name__)), slot.kinds()
    if isinstance(value, str):
        try:
            value = read_short_form(slot, value)
        except ValueError as error:
            _refuse(str(error))
        if isinstance(value, slot):
            return value
    if not isinstance(value, dict):
        _refuse(f"{quoted(value)} is not {noun}; {nearest('', kinds)}")
    fields = dict(cast("dict[str, Any]", value))
    kind = fields.pop("kind", None)
    if kind is None:
        _refuse(f"{noun} needs a 'kind'; {nearest('', kinds)}")
    part = slot.of_kind(kind)
    if part is None:
        _refuse(_no_kind(slot, kind, quoted(kind)), "kind")
    try:
        return part.model_validate(fields)
    except ValidationError as error:
        raise _inside_pydantic(problems_of(error, part)) from None


def _no_kind(slot: type[Part], kind: object, word: str) -> str:
    """Return the error message for an unknown kind. ``word``: the text for which a similar kind is suggested."""
    clause = nearest(word, slot.kinds())
    advice = "" if clause.startswith("did you mean") else "; a part of your own needs --import FILE.py"
    return f"there is no {words(slot.__name__)} {quoted(kind)}; {clause}{advice}"


def read_short_form(slot: type[Part], text: str) -> Any:
    """Parse ``text`` with ``slot.short_form``. Raises ValueError for texts that are too long or nested too deeply."""
    if len(text) > 400:
        raise ValueError(
            f"{quoted(text)} is too long for the short form of {with_article(words(slot.__name__))}; "
            "write it as a mapping"
        )
    try:
        return slot.short_form(text)
    except RecursionError:
        raise ValueError(
            f"{quoted(text)} is nested too deeply for {with_article(words(slot.__name__))}; write it as a mapping"
        ) from None


def call_form(slot: type[Part], text: str | ast.expr) -> dict[str, Any]:
    """Parse ``"window(512, sinks=4)"`` to ``{"kind": "window", "size": 512, "sinks": 4}``. Raises ValueError."""
    noun = words(slot.__name__)
    if isinstance(text, str):
        try:
            node = ast.parse(text.strip(), mode="eval").body
        except SyntaxError:
            raise ValueError(
                f"{quoted(text)} cannot be read as {with_article(noun)}; write a kind or kind(value, name=value)"
            ) from None
    else:
        node, text = text, ast.unparse(text)
    call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
    if not isinstance(call.func, ast.Name):
        raise ValueError(
            f"{quoted(text)} cannot be read as {with_article(noun)}; write a kind or kind(value, name=value)"
        )
    kind = call.func.id
    part = slot.of_kind(kind)
    if part is None:
        raise ValueError(_no_kind(slot, kind, kind))
    names = list(part.model_fields)
    if len(call.args) > len(names):
        raise ValueError(f"{kind} takes at most {len(names)} values, not {len(call.args)}")
    fields: dict[str, Any] = {"kind": kind}
    pairs = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
    for name, argument in pairs:
        if name is None or name in fields:
            raise ValueError(f"{quoted(text)} gives a value twice or without a name")
        fields[name] = _literal(argument)
    return fields


def _literal(node: ast.expr) -> Any:
    """Evaluate a Python literal; names, calls and mask expressions stay text, to be parsed by their slot."""
    if isinstance(node, ast.Name) and node.id in {"true", "false", "null"}:
        return {"true": True, "false": False, "null": None}[node.id]
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def raise_problems(problems: list[Problem]) -> None:
    """Raise a pydantic error that carries ``problems`` and their paths, if there are any; for use in validators."""
    if problems:
        raise _inside_pydantic(problems)


def _refuse(sentence: str, *path: str) -> NoReturn:
    raise _inside_pydantic([Problem(path, sentence)])


def _inside_pydantic(problems: list[Problem]) -> PydanticCustomError:
    return PydanticCustomError("problems", "{count} problems", {"count": len(problems), "problems": problems})


def problems_of(error: ValidationError, top: type[Spec]) -> list[Problem]:
    """Convert pydantic's error for data of type ``top`` to problems; problems inside a part get their full path."""
    problems: list[Problem] = []
    for item in error.errors(include_url=False):
        path: tuple[str | int, ...] = tuple(item["loc"])
        if item["type"] == "problems":
            problems += [p.under(*path) for p in item.get("ctx", {})["problems"]]
        else:
            problems.append(Problem(path, _sentence(item, top)))
    # For a list with an invalid element, pydantic also reports that the list is too short; keep only the cause.
    return [
        p for p in problems if not any(len(o.path) > len(p.path) and o.path[: len(p.path)] == p.path for o in problems)
    ]


_IN_YAML = {
    "model_type": "it should be a mapping of keys",
    "dict_type": "it should be a mapping of keys",
    "tuple_type": "it should be a list",
}
"""Messages that name YAML's types, in place of pydantic's messages, which name Python's types."""


def _sentence(item: Any, top: type[Spec]) -> str:
    kind, content = item["type"], item.get("input")
    if kind == "extra_forbidden":
        *parents, name = item["loc"]
        return f"unknown key; {nearest(str(name), _fields_at(top, parents))}"
    if kind == "missing":
        return "this key is missing and has no default"
    if kind == "too_short":
        return (
            f"{item['ctx']['actual_length']} elements given, but the list should have at least "
            f"{item['ctx']['min_length']}"
        )
    message: str = _IN_YAML.get(kind) or item["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if kind == "value_error":
        return message
    return f"{quoted(content)} given, but {message.replace('input should', 'it should')}"


def _fields_at(top: type[Spec], parents: list[str | int]) -> list[str]:
    """Return the field names allowed at the path ``parents`` in a spec ``top``; empty if the path leads to no spec."""
    here: Any = top
    for name in parents:
        if isinstance(name, int):
            continue
        field = here.model_fields.get(name)
        here = _spec_in(field.annotation) if field else None
        if here is None:
            return []
    return list(here.model_fields)


def _spec_in(annotation: Any) -> type[Spec] | None:
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return annotation
    inner: tuple[Any, ...] = get_args(annotation)
    return next((spec for spec in map(_spec_in, inner) if spec is not None), None)


def words(name: str) -> str:
    """Split a class name into lower-case words: ``"FeedForward"`` to ``"feed forward"``."""
    return "".join(f" {c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


def with_article(noun: str) -> str:
    """Prefix the indefinite article: ``"optimizer"`` to ``"an optimizer"``."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
