"""One meaning a name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

import pytest
from tests.house.source import PACKAGE, Source, on_every, package, walked

# Past participles and pronouns do not say what a value is.
PARTICIPLES = {"asked", "found", "given", "held", "kept", "known", "made", "said", "shown", "taken", "told", "wanted"}
EMPTY_WORDS = PARTICIPLES | {"others", "own", "those"}

# Parameters that callers name, by file.
NAMED_BY_CALLERS = {
    "src/qkv/interop/families/common/heads.py": {"kept"},
    "src/qkv/interop/save.py": {"kept"},
}


def local_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield (name, line) of each variable and parameter of functions, nested scopes included; fields of classes and
    names of modules are left out.
    """
    outside = {id(name) for node in walked(tree) for name in _assigned_outside(node)}
    for node in walked(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in outside:
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name, node.lineno


def _assigned_outside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of assignments in the body of a module or a class."""
    if isinstance(node, ast.Module | ast.ClassDef):
        for statement in node.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            targets += [statement.target] if isinstance(statement, ast.AnnAssign) else []
            yield from (part for target in targets for part in ast.walk(target))


def empty_names(source: Source) -> list[str]:
    """Names of local variables that do not say what a value is, with their lines."""
    refused = EMPTY_WORDS - NAMED_BY_CALLERS.get(source.name, set())
    return [f"{name} in line {line}" for name, line in local_names(source.tree) if name in refused]


@on_every(package())
def test_local_names_say_what_a_value_is(source: Source) -> None:
    wrong = empty_names(source)
    assert not wrong, f"{source.name}: name what the value is: {', '.join(wrong)}"


def test_every_exception_is_needed() -> None:
    names = {source.name: {name for name, _ in local_names(source.tree)} for source in package()}
    assert all(words <= names[file] for file, words in NAMED_BY_CALLERS.items())


@pytest.mark.parametrize(
    "line",
    [
        "def f(x):\n    found = x",
        "def _f(found): return found",
        "y = lambda x, found: x",
        "names = [found for found in x]",
        "def f(x):\n    for a, *found in x: pass",
        "def f(x):\n    if (found := x): pass",
        "def f(x):\n    with x as found: pass",
        "def f(x):\n    match x:\n        case (a, *found): pass",
    ],
)
def test_an_empty_name_is_seen(line: str) -> None:
    assert "found" in dict(local_names(ast.parse(line)))


def test_fields_and_constants_are_no_local_names() -> None:
    assert not list(local_names(ast.parse("found = 1\nclass A:\n    found: int = 2\n    kept = 3\n")))


def places() -> dict[str, list[str]]:
    """Modules that define a public class, by its name."""
    modules = defaultdict[str, list[str]](list)
    for source in package():
        parts = source.path.relative_to(PACKAGE).parts
        for node in walked(source.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append("/".join(parts))
    return modules


def test_a_class_and_its_description_alone_share_a_name() -> None:
    twice = {name: paths for name, paths in places().items() if len(paths) > 1}
    assert len(twice) > 40  # specs and what implements them
    wrong = {
        name: paths
        for name, paths in twice.items()
        if len(paths) > 2 or sum(path.startswith("spec/") for path in paths) != 1
    }
    assert not wrong, f"classes of one name: {wrong}"


def test_the_glossary_is_short_and_sorted() -> None:
    text = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text().partition("## Glossary")[2].partition("\n## ")[0]
    words = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][1:]
    assert 30 < len(words) <= 60
    assert words == sorted(set(words))
