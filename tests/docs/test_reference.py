"""The API reference names everything public, with fields, types, limits and defaults."""

from __future__ import annotations

import re

import pytest
from making.reference import MODULES, documented_modules, modules, names, readable, specs

import qkv
from qkv.spec.base import Part


@pytest.fixture(scope="module")
def fields() -> str:
    return specs()


def test_every_public_name_is_documented() -> None:
    documented = re.findall(r"^\.\. auto(?:function|class|exception):: qkv\.(\w+)$", names(), re.MULTILINE)
    assert sorted(documented) == sorted(set(qkv.__all__) - {"spec"})


def test_every_kind_of_every_slot_is_documented_with_its_fields(fields: str) -> None:
    for slot in Part.__subclasses__():
        section = re.search(rf"^## Slot {slot.__name__}\n(.*?)(?=^## |\Z)", fields, re.MULTILINE | re.DOTALL)
        assert section is not None, slot
        for kind, part in slot.kinds().items():
            if part.__module__.startswith("qkv."):
                described = re.search(rf"^### `{kind}`\n(.*?)(?=^##|\Z)", section[1], re.MULTILINE | re.DOTALL)
                assert described is not None, kind
                assert re.findall(r"^\| `(\w+)` \|", described[1], re.MULTILINE) == list(part.model_fields)


def test_types_limits_and_defaults_are_shown(fields: str) -> None:
    assert "| `chunk` | int, > 0 | `64` | positions per chunk of the parallel form |" in fields
    assert re.search(r"^\| `relative` \| Relative \| `none` \|", fields, re.MULTILINE)
    assert "| `source` | str | required |" in fields


def test_documented_modules_exist_and_are_described() -> None:
    assert all(module.__doc__ for module in documented_modules())
    assert all(f"automodule:: {name}" in modules() for group in MODULES.values() for name in group)


def test_formulas_of_docstrings_are_kept_and_other_text_has_no_markup() -> None:
    assert readable(["Sum of *all* |x_|, see ``a*b``.", "", "    y = x * W    x (B, N)"]) == [
        "Sum of \\*all\\* \\|x\\_\\|, see ``a*b``.",
        "",
        "::",
        "",
        "       y = x * W    x (B, N)",
        "",
    ]
