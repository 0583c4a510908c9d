"""The project's own source as syntax trees, read once."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "qkv"
TESTS = ROOT / "tests"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def walked(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Every node of a tree that is kept: many checks walk through the same million."""
    return tuple(ast.walk(tree))


@dataclass(frozen=True)
class Source:
    """One Python file."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def name(self) -> str:
        """Its path below the project, for messages."""
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def functions(self) -> list[Function]:
        return [node for node in walked(self.tree) if isinstance(node, Function)]


@cache
def package() -> tuple[Source, ...]:
    return tuple(Source(path) for path in sorted(PACKAGE.rglob("*.py")))


@cache
def suite() -> tuple[Source, ...]:
    return tuple(Source(path) for path in sorted(TESTS.rglob("*.py")))


def dotted_name(node: ast.expr) -> str:
    """``torch.testing.assert_close`` for the expression that says so, "" for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted_name(node.value)
        return f"{before}.{node.attr}" if before else node.attr
    return ""


def on_every(sources: Iterable[Source]) -> Callable[[Callable[[Source], None]], Callable[[], None]]:
    """Make one test of a check of source files; it names every file that fails. A test for each of 1,400 files and
    each check would take longer than the checks.
    """

    def wrapped(check: Callable[[Source], None]) -> Callable[[], None]:
        def test_every_source() -> None:
            wrong = []
            for source in sources:
                try:
                    check(source)
                except AssertionError as error:
                    wrong.append(str(error) if source.name in str(error) else f"{source.name}: {error}")
            assert not wrong, "\n".join(wrong)

        test_every_source.__name__, test_every_source.__doc__ = check.__name__, check.__doc__
        return test_every_source

    return wrapped
