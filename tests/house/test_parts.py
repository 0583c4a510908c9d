"""What a part is, is asked of its spec or module, not decided by checks of its class elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

import pytest
from tests.house.source import Source, dotted_name, on_every, package, walked

from qkv.spec.base import Part
from qkv.spec.register import implementations

PACKAGES = tuple(
    f"qkv.{room}"
    for room in (
        "layers",
        "mixers",
        "frontends",
        "models",
        "tasks",
        "tokenizers",
        "data",
        "data.processors",
        "training",
    )
)

ALLOWED = {
    "spec/masks.py": "brackets of mask expressions follow the precedence of & and |",
    "mixers/attention/attention.py": (
        "a ring that holds causal & window(n) alone needs no mask, whatever the mask could say of itself"
    ),
    "models/fast/native_step.py": "the native library carries out some parts and no others",
    "interop/images.py": "the format describes image processors and nothing else",
    "interop/sounds.py": "the format describes processors of sound and nothing else",
    "interop/adapters/write.py": "the format describes low-rank matrices and nothing else",
    "runs/start.py": "a file with low-rank matrices is merged by their names",
}
"""Files that check for the class of a part, with the reason."""
FOLDERS = ("interop/families/",)
"""Families of published models compare whole specs."""


@cache
def parts() -> frozenset[type]:
    """Classes of specs in slots and the classes that implement them."""
    found = implementations(Part, *PACKAGES)
    made = {one for one in found.values() if isinstance(one, type) and one.__module__.startswith("qkv.")}
    return frozenset(
        made
        | {
            base
            for part in found
            for base in part.__mro__
            if issubclass(base, Part) and not base._is_slot and base is not Part
        }
    )


def known_as(source: Source) -> dict[str, Any]:
    """What the names imported from the package, or defined in the file, stand for."""
    path = source.path.with_suffix("").as_posix()
    own = import_module(path[path.rindex("/qkv/") + 1 :].replace("/", ".").removesuffix(".__init__"))
    imports = [
        node
        for node in walked(source.tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("qkv")
    ]
    found = {node.name: getattr(own, node.name, None) for node in source.tree.body if isinstance(node, ast.ClassDef)}
    for node in imports:
        for alias in node.names:
            found[alias.asname or alias.name] = getattr(import_module(str(node.module)), alias.name, None)
    return found


def checked(tree: ast.AST) -> Iterator[ast.expr]:
    """Classes that ``isinstance``, ``issubclass``, ``type(…) is`` and ``case Class()`` compare with, as expressions."""
    for node in walked(tree):
        if (
            isinstance(node, ast.Call)
            and dotted_name(node.func) in ("isinstance", "issubclass")
            and len(node.args) == 2
        ):
            yield from (inner for inner in ast.walk(node.args[1]) if isinstance(inner, (ast.Name, ast.Attribute)))
        elif isinstance(node, ast.MatchClass):
            yield node.cls
        elif (
            isinstance(node, ast.Compare) and isinstance(node.left, ast.Call) and dotted_name(node.left.func) == "type"
        ):
            yield from (
                inner for inner in ast.walk(node.comparators[0]) if isinstance(inner, (ast.Name, ast.Attribute))
            )


def decided(source: Source) -> list[str]:
    """Parts whose class the file checks for, except in an assertion."""
    asserted = {id(node) for found in walked(source.tree) if isinstance(found, ast.Assert) for node in ast.walk(found)}
    wrong, known = [], known_as(source)
    for node in checked(source.tree):
        first, _, rest = dotted_name(node).partition(".")
        found = getattr(known.get(first), rest, None) if rest else known.get(first)
        if found in parts() and id(node) not in asserted:
            wrong.append(dotted_name(node))
    return wrong


SOURCES = [
    source
    for source in package()
    if "isinstance(" in source.text or "issubclass(" in source.text or "    case " in source.text
]


@on_every(SOURCES)
def test_no_check_of_a_class_decides_what_a_part_is(source: Source) -> None:
    name = source.name.removeprefix("src/qkv/")
    if not name.startswith(FOLDERS):
        assert name in ALLOWED or not decided(source), (
            f"{name} asks for {', '.join(decided(source))}; declare a property of the part instead"
        )


def test_exceptions_are_needed() -> None:
    assert {
        name
        for name in ALLOWED
        if not any(source.name.endswith(f"qkv/{name}") and decided(source) for source in SOURCES)
    } == set()


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("isinstance(x, Rope)", 1),
        ("isinstance(x, (parts.Rope, str))", 1),
        ("type(x) is Rope", 1),
        ("match x:\n    case Rope():\n        pass", 1),
        ("assert isinstance(x, Rope)", 0),
        ("isinstance(x, str)", 0),
    ],
)
def test_a_check_of_a_part_is_seen(line: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = package()[1]
    tree = ast.parse(f"from qkv.spec import parts\nfrom qkv.spec.parts import Rope\n{line}")
    monkeypatch.setitem(source.__dict__, "tree", tree)
    assert len(decided(source)) == count
