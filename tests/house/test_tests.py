"""Every test can fail: it asserts, expects an error or calls a helper that does; no comparison is made and dropped."""

from __future__ import annotations

import ast
from functools import cache

import pytest
from tests.house.source import Function, Source, dotted_name, on_every, suite, walked

CHECKS = ("pytest.raises", "pytest.warns", "pytest.fail", "raises")
"""Calls that fail a test by themselves; so does every name whose last part begins with ``assert``."""

DROPPED = (
    "torch.equal",
    "torch.allclose",
    "np.allclose",
    "np.array_equal",
    "numpy.allclose",
    "math.isclose",
    "isinstance",
    "all",
    "any",
)
"""Questions whose answer is lost when nobody reads it."""


@cache
def helpers() -> dict[str, list[Function]]:
    """Every function of the test folder by name; a method counts under its own name."""
    found: dict[str, list[Function]] = {}
    for source in suite():
        for function in source.functions:
            found.setdefault(function.name, []).append(function)
    return found


@cache
def calls(function: ast.AST) -> set[str]:
    return {dotted_name(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)} - {""}


def can_fail(function: Function, known: dict[str, list[Function]], seen: frozenset[str] = frozenset()) -> bool:
    if any(isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant) for node in ast.walk(function)):
        return True
    for call in calls(function):
        last = call.rsplit(".", 1)[-1]
        if call in CHECKS or last.startswith("assert"):
            return True
        if last not in seen and any(can_fail(f, known, seen | {last}) for f in known.get(last, [])):
            return True
    return False


def is_dropped(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr):
        return False
    return isinstance(node.value, ast.Compare) or (
        isinstance(node.value, ast.Call) and dotted_name(node.value.func) in DROPPED
    )


@on_every(suite())
def test_every_test_can_fail(source: Source) -> None:
    idle = [f.name for f in source.functions if f.name.startswith("test_") and not can_fail(f, helpers())]
    assert not idle, f"{source.name}: these assert nothing: {', '.join(idle)}"


@on_every(suite())
def test_no_comparison_is_dropped(source: Source) -> None:
    lines = [str(node.lineno) for node in walked(source.tree) if isinstance(node, ast.Expr) and is_dropped(node)]
    assert not lines, f"{source.name}: the answer is never read in line {', '.join(lines)}"


@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "assert True",
        "x = f() == 2",
        "torch.allclose(a, b)",
        "helper_without_check()",
        "with open(p) as f: f.read()",
    ],
)
def test_an_idle_test_is_seen(body: str) -> None:
    known = {"helper_without_check": [function("def helper_without_check(): return 1")]}
    assert not can_fail(
        function(f"def test_x(): {body}" if not body.startswith("with") else f"def test_x():\n  {body}"), known
    )


@pytest.mark.parametrize("body", ["assert f()", "torch.testing.assert_close(a, b)", "helper()"])
def test_a_checking_test_is_seen(body: str) -> None:
    assert can_fail(function(f"def test_x(): {body}"), {"helper": [function("def helper(): assert g()")]})


@pytest.mark.parametrize(
    ("line", "dropped"), [("a == b", True), ("torch.equal(a, b)", True), ("x = a == b", False), ("f(a)", False)]
)
def test_a_dropped_comparison_is_seen(line: str, dropped: bool) -> None:
    assert is_dropped(ast.parse(line).body[0]) is dropped


def function(text: str) -> Function:
    found = ast.parse(text).body[0]
    assert isinstance(found, Function)
    return found
