"""Several options of the command line as one parameter of a command: groups of options, and fields of a spec."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, Protocol, get_args, get_origin, get_type_hints

import typer

from qkv.spec.base import Spec
from qkv.spec.errors import SpecError
from qkv.system.errors import UserError


class OptionGroup(Protocol):
    """Several options that a command takes as one parameter."""

    def options(self) -> Mapping[str, tuple[Any, Any]]:
        """Return the options by name: (annotation for typer, default)."""
        ...

    def collect(self, values: Mapping[str, Any]) -> Any:
        """Build the argument of the command from the values of the options. Raises ``UserError``."""
        ...


class SpecOption(NamedTuple):
    """Form of a field of a spec on the command line.

    metavar: placeholder of its value.   help: by default the description of the field.   flag: by default the name of
    the field.   type: type on the command line, by default that of the field.   read: converts a value of that type to
    one of the field.
    """

    metavar: str | None = None
    help: str = ""
    flag: str = ""
    type: Any = None
    read: Callable[[Any], Any] = lambda value: value


class SpecOptions:
    """Options that are fields of a spec; a command receives a dict of those that the user gives.

    Help is the field's description. Names of fields in it are replaced by their placeholders: "score / length **
    length_penalty" becomes "score / length ** A".
    """

    def __init__(self, spec: type[Spec], forms: Mapping[str, SpecOption | str]):
        """forms: ``SpecOption`` of each field that is an option, or only its placeholder."""
        self.spec = spec
        self.forms = {name: SpecOption(form) if isinstance(form, str) else form for name, form in forms.items()}

    def only(self, names: Iterable[str], texts: Mapping[str, str]) -> SpecOptions:
        """Return a copy with only the fields ``names``. texts: field -> help that replaces the default."""
        forms = {name: self.forms[name] for name in names}
        return SpecOptions(
            self.spec, {name: form._replace(help=texts.get(name, form.help)) for name, form in forms.items()}
        )

    def options(self) -> dict[str, tuple[Any, Any]]:
        """Return the options by name: (annotation for typer, default). All are None by default."""
        return {name: (self._annotation(name, form), None) for name, form in self.forms.items()}

    def collect(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the fields that are given. Raises ``UserError`` from ``SpecOption.read``."""
        return {name: self.forms[name].read(value) for name, value in values.items() if value is not None}

    @contextmanager
    def errors(self) -> Generator[None]:
        """Context manager: replace a ``SpecError`` by one sentence that names the invalid option."""
        try:
            yield
        except SpecError as error:
            first = error.problems[0]
            name = str(first.path[0]) if first.path else ""
            if name not in self.forms:
                raise
            raise UserError(f"{self.flag(name)}: {first.sentence}") from None

    def flag(self, name: str) -> str:
        """Return the name of the option of a field, such as "--top-k"."""
        return self.forms[name].flag or flag_of(name)

    def _annotation(self, name: str, form: SpecOption) -> Any:
        flags = (form.flag,) if form.flag else ()
        kind = form.type or _plain(self.spec.model_fields[name].annotation)
        return Annotated[kind | None, typer.Option(*flags, metavar=form.metavar, help=form.help or self._help(name))]

    def _help(self, name: str) -> str:
        text = self.spec.model_fields[name].description or name.replace("_", " ")
        for field, form in self.forms.items():
            if form.metavar is not None:
                text = re.sub(rf"\b{field}\b", form.metavar, text) if "_" in field else text
        return f"{text[0].upper()}{text[1:]}."


class _TupleGroup:
    """OptionGroup of the fields of a named tuple, whose annotations are those of options."""

    def __init__(self, kind: type[Any]):
        self._class = kind

    def options(self) -> dict[str, tuple[Any, Any]]:
        hints = get_type_hints(self._class, include_extras=True)
        return {name: (hints[name], self._class._field_defaults[name]) for name in self._class._fields}

    def collect(self, values: Mapping[str, Any]) -> Any:
        return self._class(**values)


def flag_of(name: str) -> str:
    """Return the option of the parameter ``name``, such as "--top-k"."""
    return f"--{name.replace('_', '-')}"


def with_options(command: Callable[..., None], more: Mapping[str, Any]) -> Callable[..., None]:
    """Replace each parameter of ``command`` that stands for several options by these, so that typer finds them.

    Such a parameter is annotated by a named tuple of options, or by ``Annotated[…, group]``. ``**columns`` stands for
    ``more``: annotation of each option by name, with the default None; the command's own options take precedence over
    those of the same name.
    """
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    groups = {each.name: group for each in parameters if (group := _group(each.annotation)) is not None}
    fields = {name: list(group.options()) for name, group in groups.items()}

    @wraps(command)
    def called(**values: Any) -> None:
        parts = {name: {field: values.pop(field) for field in fields[name]} for name in groups}
        command(**values, **{name: groups[name].collect(part) for name, part in parts.items()})

    options = [option for each in parameters for option in _options(each, groups)]
    names = {each.name for each in options}
    options += [_option(name, annotation, None) for name, annotation in more.items() if name not in names]
    called.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in options}
    del called.__wrapped__  # type: ignore[attr-defined]
    return called


def _options(parameter: inspect.Parameter, groups: Mapping[str, OptionGroup]) -> Iterator[inspect.Parameter]:
    """Yield the options that a parameter stands for; none for ``**columns``."""
    if parameter.name in groups:
        for name, (annotation, default) in groups[parameter.name].options().items():
            yield _option(name, annotation, default)
    elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _group(annotation: Any) -> OptionGroup | None:
    """Return the group that the annotation of a parameter names, if any."""
    if hasattr(annotation, "_field_defaults"):
        return _TupleGroup(annotation)
    return next((each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, SpecOptions)), None)


def _plain(annotation: Any) -> Any:
    """Return the type on the command line for that of a field: a number, text, bool, or a list of them."""
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    if get_origin(annotation) is Literal:
        return str
    if get_origin(annotation) is Annotated:
        return _plain(kinds[0])
    if get_origin(annotation) is tuple:
        return list[_plain(kinds[0])]
    return _plain(kinds[0]) if kinds else annotation
