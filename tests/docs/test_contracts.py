"""docs/contracts.md is the table of the registered parts, and the tests that it names exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from making.contracts import PAGE, page
from tests.contracts.limits import LIMITS
from tests.inventory import assert_lists

from qkv.mixers.registry import branches

TESTS = Path(__file__).resolve().parents[1]


def test_the_page_is_that_of_the_registered_parts() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python docs/making/contracts.py"


def test_every_part_has_a_limit_or_a_reason() -> None:
    known = [spec.kind for spec in branches() if spec.__module__.startswith("qkv.")]
    assert_lists("tests/contracts/limits.py, LIMITS", LIMITS, known)
    assert all(limit.test or limit.what.startswith("no limit: ") for limit in LIMITS.values())


@pytest.mark.parametrize("named", sorted({limit.test for limit in LIMITS.values() if limit.test}))
def test_tests_of_limits_exist(named: str) -> None:
    file, _, name = named.partition("::")
    functions = ast.parse((TESTS / file).read_text(encoding="utf-8")).body
    assert name in {each.name for each in functions if isinstance(each, ast.FunctionDef)}
