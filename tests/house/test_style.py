"""Sizes, docstrings and words: what keeps the source readable, measured."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.house.source import ROOT, Function, Source, on_every, package, suite, walked

MOST_LINES_OF_A_FUNCTION = 40
MEDIAN_LINES_OF_A_FUNCTION = 12
MOST_PARAMETERS = 12
MOST_PARAMETERS_OF_FORWARD = 6

# Joined from pieces, so that this file does not hold the words that it forbids.
FORBIDDEN = {
    "a path of somebody's machine": re.compile(
        "|".join(("/wo" + "rk/", "/ho" + r"me/\w", "/ro" + r"ot/\w", "/tm" + "p/", "/Use" + r"rs/\w"))
    ),
    "a package registry's host": re.compile("py" + r"pi\.org|files\.python" + r"hosted|ana" + r"conda\.org"),
    "a note to do something later": re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b"),
    "a mark of an unfinished merge": re.compile("^(<{7}|>{7}|={7})( |$)", re.MULTILINE),
}
BANNER = re.compile(r"^\s*#\s*[-=#*~─━]{3,}", re.MULTILINE)
TEXTS = (".py", ".md", ".toml", ".yaml", ".yml", ".json", ".txt", ".cfg", "")
FOLDERS = ("src", "tests", "docs", "examples", "recipes", "benchmarks", ".ci")


@cache
def texts() -> tuple[Path, ...]:
    """Every text file of the project, those directly in its folder and those in its known folders."""
    found = [
        path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"
    ]  # a file in a second working tree
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return tuple(sorted(path for path in found if path.suffix in TEXTS))


def size(function: Function) -> int:
    """Lines from ``def`` to the end, without the docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        text = function.body[0]
        lines -= (text.end_lineno or text.lineno) - text.lineno + 1
    return lines


def parameters(function: Function) -> int:
    """How many arguments it takes, ``self`` and ``cls`` not counted."""
    a = function.args
    named = [arg.arg for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs) if arg.arg not in ("self", "cls")]
    return len(named)


def public_definitions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Public classes, functions and methods with their dotted name; what stands inside a function is private."""
    for node in tree.body:
        if isinstance(node, (*Function.__args__, ast.ClassDef)) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                members = (item for item in node.body if isinstance(item, Function) and not item.name.startswith("_"))
                yield from ((f"{node.name}.{item.name}", item) for item in members)


@cache
def described_methods() -> frozenset[str]:
    """Names of methods that some class of the package describes: an override need not say it again. ``forward`` is the
    class's own text, ``model_post_init`` is pydantic's."""
    names = {"forward", "model_post_init"}
    for source in package():
        for name, node in public_definitions(source.tree):
            if "." in name and ast.get_docstring(node):  # type: ignore[arg-type]
                names.add(name.rsplit(".", 1)[-1])
    return frozenset(names)


@on_every(package())
def test_what_is_public_is_described(source: Source) -> None:
    if source.path.name == "__init__.py" and not source.text.strip():
        assert not source.tree.body
        return
    missing = [] if ast.get_docstring(source.tree) else ["the module"]
    for name, node in public_definitions(source.tree):
        method = name.rsplit(".", 1)[-1] if "." in name else None
        if not ast.get_docstring(node) and method not in described_methods():  # type: ignore[arg-type]
            missing.append(name)
    assert not missing, f"{source.name}: no docstring at {', '.join(missing)}"


@on_every([*package(), *suite()])
def test_functions_are_short(source: Source) -> None:
    long = [f"{f.name} ({size(f)})" for f in source.functions if size(f) > MOST_LINES_OF_A_FUNCTION]
    assert not long, f"{source.name}: too long: {', '.join(long)}"


def test_the_median_function_is_short() -> None:
    sizes = [size(f) for source in package() for f in source.functions]
    assert statistics.median(sizes) < MEDIAN_LINES_OF_A_FUNCTION


@on_every(package())
def test_few_parameters(source: Source) -> None:
    many = [f.name for f in source.functions if parameters(f) > MOST_PARAMETERS]
    many += [f.name for f in source.functions if f.name == "forward" and parameters(f) > MOST_PARAMETERS_OF_FORWARD]
    assert not many, f"{source.name}: too many parameters: {', '.join(many)}"


@pytest.mark.parametrize("why", FORBIDDEN)
def test_no_file_holds(why: str) -> None:
    found = []
    for path in texts():
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [
            f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, m.start()) + 1}" for m in FORBIDDEN[why].finditer(text)
        ]
    assert not found, f"{why}: {', '.join(found)}"


@on_every(package())
def test_nothing_rounds_float64_in_passing(source: Source) -> None:
    """``x.float()`` narrows float64: ``qkv.ops.at_least_single`` does not."""
    calls = [
        node for node in walked(source.tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    found = [str(node.lineno) for node in calls if node.func.attr == "float" and not node.args]  # type: ignore[attr-defined]
    assert not found, f"{source.name}: .float() in line {', '.join(found)}"


@on_every([*package(), *suite()])
def test_no_banner_comments(source: Source) -> None:
    assert not BANNER.search(source.text)


@pytest.mark.parametrize(
    ("why", "text"),
    [
        ("a path of somebody's machine", "data = '/ho" + "me/ann/x'"),
        ("a package registry's host", "py" + "pi.org/simple"),
        ("a note to do something later", "# TO" + "DO: later"),
        ("a mark of an unfinished merge", "a\n" + "<" * 7 + " HEAD\n"),
    ],
)
def test_a_forbidden_word_is_seen(why: str, text: str) -> None:
    assert FORBIDDEN[why].search(text)


def test_sizes_are_counted_without_docstrings() -> None:
    function = ast.parse('def f(self, a, *, b):\n    """One.\n\n    Two."""\n    return a\n').body[0]
    assert isinstance(function, Function)
    assert (size(function), parameters(function)) == (2, 2)
