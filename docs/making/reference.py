"""Sphinx extension: API reference, generated from the code.

``api/names`` documents every name of ``import qkv``, ``api/specs`` every field of every spec, ``api/modules`` further
modules.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

import qkv
import qkv.spec.files.yaml_io
from qkv.spec.base import Part, Spec

MODULES: dict[str, tuple[str, ...]] = {
    "Models and front ends": (
        "qkv.models.transformer",
        "qkv.models.block",
        "qkv.layers.signal",
        "qkv.frontends.frontend",
    ),
    "Parts of your own": (
        "qkv.spec.register",
        "qkv.spec.base",
        "qkv.layers.branch",
        "qkv.layers.context",
        "qkv.layers.relative",
        "qkv.layers.norms",
    ),
    "Observation": ("qkv.lens.record", "qkv.layers.tap", "qkv.layers.observable", "qkv.models.alignment"),
    "Operations": (
        "qkv.ops.attention.reference",
        "qkv.ops.masks",
        "qkv.ops.positions",
        "qkv.ops.recurrence.reference",
    ),
    "State": ("qkv.state.store", "qkv.state.arrival", "qkv.state.tree"),
    "Generation": (
        "qkv.generation.text",
        "qkv.generation.decode.beam",
        "qkv.generation.decode.score",
        "qkv.generation.decode.sample",
        "qkv.generation.engine",
    ),
    "Data and tasks": ("qkv.data.batching.batch", "qkv.data.vocabulary", "qkv.tokenizers.tokenizer", "qkv.tasks.task"),
    "Changing specs": ("qkv.spec.files.overrides", "qkv.spec.models.surgery", "qkv.spec.files.yaml_io"),
    "Reports": (
        "qkv.report.page",
        "qkv.report.charts.chart",
        "qkv.report.charts.series",
        "qkv.report.charts.heatmap",
        "qkv.report.charts.bars",
    ),
}
"""Documented modules by heading."""


def names() -> str:
    """Page of all names of ``import qkv``: functions, classes, errors."""
    found = {name: getattr(qkv, name) for name in qkv.__all__ if not inspect.ismodule(getattr(qkv, name))}
    functions = [name for name, value in found.items() if inspect.isroutine(value)]
    errors = [name for name, value in found.items() if inspect.isclass(value) and issubclass(value, Exception)]
    classes = [name for name in found if name not in (*functions, *errors)]
    parts = [
        "# Names of `import qkv`\n\n`qkv.spec` holds the classes of all parts: [specs](specs.md).",
        *_group("Functions", functions, "autofunction"),
        *_group("Classes", [name for name in classes if not issubclass(found[name], Spec)], "autoclass", ":members:"),
        *_group("Specs", [name for name in classes if issubclass(found[name], Spec)], "autoclass", ":no-index:"),
        *_group("Errors", errors, "autoexception"),
    ]
    return "\n\n".join(parts) + "\n"


def _group(title: str, members: list[str], directive: str, *options: str) -> Iterator[str]:
    yield f"## {title}"
    for name in members:
        yield _directive(f".. {directive}:: qkv.{name}", *options)


def _directive(*lines: str) -> str:
    return "```{eval-rst}\n" + "\n   ".join(lines) + "\n```"


def modules() -> str:
    """Page of ``MODULES``, each with its public members."""
    parts = ["# Modules"]
    for title, members in MODULES.items():
        parts.append(f"## {title}")
        for name in members:
            parts += [f"### `{name}`", _directive(f".. automodule:: {name}", ":members:", ":member-order: bysource")]
    return "\n\n".join(parts) + "\n"


def specs() -> str:
    """Page of all specs: those with a fixed place, then each slot with its kinds."""
    parts = [
        "# Specs",
        "Fields of recipes and models. "
        "A slot takes any of its kinds, written as `kind`, `kind(value, name=value)` or a mapping.",
    ]
    for spec in sorted(set(_fixed(Spec)), key=lambda spec: spec.__name__):
        parts += [f"## {spec.__name__}", f"`{spec.__module__}.{spec.__name__}`", *_described(spec), _table(spec)]
    for slot in sorted(Part.__subclasses__(), key=lambda slot: slot.__name__):
        parts += [f"## Slot {slot.__name__}", *_described(slot)]
        for kind, part in sorted(slot.kinds().items()):
            if part.__module__.startswith("qkv."):
                parts += [f"### `{kind}`", f"`{part.__module__}.{part.__name__}`", *_described(part), _table(part)]
    return "\n\n".join(parts) + "\n"


def _fixed(spec: type[Spec]) -> Iterator[type[Spec]]:
    for below in spec.__subclasses__():
        if below is not Part:
            derived = [spec for spec in below.__subclasses__() if spec.__module__ == below.__module__]
            public = below.__module__.startswith("qkv.") and not below.__name__.startswith("_")
            if public and below.model_fields and not derived:
                yield below
            yield from _fixed(below)


def _described(spec: type[Spec]) -> Iterator[str]:
    """Docstring of the class itself, with formulas kept as they are."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(spec.__doc__ or "")):
        text = paragraph.replace("``", "`")
        if re.search(r"^\s| {3}", text, re.MULTILINE):
            yield f"```text\n{text}\n```"
        elif text:
            yield re.sub(r"(?<!`)([*_<|$\\])(?!`)", r"\\\1", text) if "`" not in text else _escaped(text)


def _escaped(text: str) -> str:
    """Escape Markdown outside of code."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else re.sub(r"([*_<|$\\])", r"\\\1", piece) for piece in pieces)


def _table(spec: type[Spec]) -> str:
    if not spec.model_fields:
        return "No fields."
    rows = [
        f"| `{name}` | {_type(field)} | {_default(field)} | {_meaning(field)} |"
        for name, field in spec.model_fields.items()
    ]
    return "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows])


def _type(field: FieldInfo) -> str:
    limits = [_limit(piece) for piece in field.metadata]
    return ", ".join(words for words in (_named(field.annotation), *limits) if words)


def _named(annotation: Any) -> str:
    """Type in words: a slot or spec by its name, choices by their values."""
    if annotation in (None, NoneType):
        return "null"
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    if arguments := get_args(annotation):
        inside = [_named(a) for a in arguments if a is not Ellipsis]
        origin = get_origin(annotation)
        if origin in (tuple, list):
            return "list of " + " or ".join(dict.fromkeys(inside))
        return f"mapping of {' to '.join(inside)}" if origin is dict else " or ".join(inside)
    return getattr(annotation, "__name__", str(annotation)).replace("_", r"\_")


def _limit(piece: Any) -> str:
    signs = {
        annotated_types.Gt: ("gt", ">"),
        annotated_types.Ge: ("ge", "≥"),
        annotated_types.Lt: ("lt", "<"),
        annotated_types.Le: ("le", "≤"),
    }
    for kind, (name, sign) in signs.items():
        if isinstance(piece, kind):
            return f"{sign} {getattr(piece, name)}".replace("<", "&lt;")
    return ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return f"`{_brief(field.get_default(call_default_factory=True))}`".replace("|", r"\|")


def _brief(value: Any) -> str:
    """Value as written in a recipe; of a part the kind and the fields that differ from their defaults."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_brief, value))}]"
    if isinstance(value, Spec):
        kind, mark = (value.kind, "=") if isinstance(value, Part) else ("", ": ")
        inside = ", ".join(
            f"{name}{mark}{_brief(getattr(value, name))}"
            for name in value.essential()
            if name in type(value).model_fields
        )
        return f"{kind}({inside})" if inside and kind else kind or f"{{{inside}}}"
    if value is None or isinstance(value, bool):
        return str({None: "null"}.get(value, str(value).lower()))
    return str(value) or '""'


def _meaning(field: FieldInfo) -> str:
    return _escaped((field.description or "").replace("``", "`"))


PAGES: dict[str, Callable[[], str]] = {"api/names": names, "api/specs": specs, "api/modules": modules}


def readable(lines: list[str]) -> list[str]:
    """Docstring as reStructuredText: formulas and drawings become literal blocks, other text has no markup but code."""
    out: list[str] = []
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        if paragraph.lstrip().startswith((":", "- ", "..", "::", ">>>")):
            out += [*paragraph.split("\n"), ""]
        elif re.search(r"^\s|\S {3}|[│┌└─]", paragraph, re.MULTILINE):
            out += ["::", "", *("   " + line for line in paragraph.split("\n")), ""]
        else:
            pieces = re.split(r"(``.*?``|:\w+:`[^`]*`)", paragraph, flags=re.DOTALL)
            out += ["".join(p if p.startswith(("``", ":")) else re.sub(r"([*|_`\\])", r"\\\1", p) for p in pieces), ""]
    return [line for block in out for line in block.split("\n")]


def _docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [] if lines[:1] and lines[0].startswith("Alias for field number") else readable(lines)


def _written(_: Any, name: str, source: list[str]) -> None:
    if name in PAGES:
        source[0] = PAGES[name]()


def documented_modules() -> Iterator[Any]:
    """Modules of ``MODULES``, imported."""
    return (import_module(name) for group in MODULES.values() for name in group)


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", _written)
    app.connect("autodoc-process-docstring", _docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
